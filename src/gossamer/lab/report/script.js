"use strict";
const root = document.documentElement;
root.classList.add("js");

// Light or dark: the system's choice until the reader makes one.
const button = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
const label = () => {
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
};
const store = (action) => {
  try {
    return action(localStorage);
  } catch {
    return null; // A page opened from a file may have no storage.
  }
};
const saved = store((storage) => storage.getItem("gossamer-theme"));
if (saved === "light" || saved === "dark") root.dataset.theme = saved;
button.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  store((storage) => storage.setItem("gossamer-theme", root.dataset.theme));
  label();
});
system.addEventListener("change", label);
button.hidden = false;
label();

// A header sorts the groups of its table; groups without a value come last either way.
const compare = (a, b, down) => {
  if (a === "" || b === "") return (a === "") - (b === "");
  const order = Number.isNaN(Number(a) + Number(b)) ? a.localeCompare(b) : Number(a) - Number(b);
  return down ? -order : order;
};
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.querySelectorAll("thead th")];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (body) => body.rows[0].cells[column].dataset.value ?? "";
      const sorted = [...table.tBodies].sort((a, b) => compare(value(a), value(b), down));
      table.append(...sorted);
    });
  });
}

// A table that does not fit its place becomes a list of rows.
const fit = (place) => {
  place.classList.remove("stacked");
  if (place.scrollWidth > place.clientWidth) place.classList.add("stacked");
};
for (const place of document.querySelectorAll(".scroll")) {
  if (!place.querySelector("table.measurements")) new ResizeObserver(() => fit(place)).observe(place.parentElement);
}

// Over lines, a rule shows the values of all series at the nearest place; without a script, points have titles.
for (const chart of document.querySelectorAll("svg.chart")) {
  const points = [...chart.querySelectorAll("circle.hit")].map((hit) => {
    const [, label, value, place] = hit.textContent.match(/^(.*): (.*?) at (.*)$/);
    hit.replaceChildren();
    return { x: hit.cx.baseVal.value, label, value, place };
  });
  if (!points.length) continue;
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  const rule = document.createElementNS(chart.namespaceURI, "path");
  rule.setAttribute("class", "rule hit");
  chart.append(rule);
  chart.parentElement.append(tip);
  const nearest = (some, x) => some.reduce((a, b) => (Math.abs(b.x - x) < Math.abs(a.x - x) ? b : a));
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const scale = box.width / chart.viewBox.baseVal.width;
    const { x, place } = nearest(points, (event.clientX - box.left) / scale);
    const labels = [...new Set(points.map((point) => point.label))];
    const here = labels.map((label) => nearest(points.filter((point) => point.label === label), x));
    tip.textContent = [place, ...here.map(({ label, value }) => `${label}: ${value}`)].join("\n");
    rule.setAttribute("d", `M${x} 30V${chart.querySelector("line.axis").y1.baseVal.value}`);
    tip.hidden = false;
    tip.style.left = `${Math.min(x * scale + 12, box.width - tip.offsetWidth)}px`;
  });
  chart.addEventListener("pointerleave", () => {
    tip.hidden = true;
    rule.removeAttribute("d");
  });
}

// A figure as a file of its own, in light colours, its styles written into its elements.
const STYLES = ["fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray", "stroke-linecap",
  "stroke-linejoin", "paint-order", "opacity", "transform", "font-family", "font-size", "font-weight", "text-anchor"];
const standalone = (svg) => {
  const theme = root.dataset.theme;
  root.dataset.theme = "light";
  const copy = svg.cloneNode(true);
  const [from, to] = [svg, copy].map((one) => [...one.querySelectorAll("*")]);
  from.forEach((element, place) => {
    if (!element.matches("title, desc, clipPath, clipPath *")) {
      const style = getComputedStyle(element);
      if (style.display === "none") to[place].classList.add("hit"); // what is not seen is not saved
      to[place].setAttribute("style", STYLES.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";"));
    }
  });
  if (theme) root.dataset.theme = theme;
  else delete root.dataset.theme;
  for (const hit of copy.querySelectorAll(".hit")) hit.remove();
  const { width, height } = svg.viewBox.baseVal;
  const size = { width, height, overflow: "visible", xmlns: svg.namespaceURI };
  for (const [name, value] of Object.entries(size)) copy.setAttribute(name, value);
  return new XMLSerializer().serializeToString(copy);
};
const download = (text, name) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};
for (const save of document.querySelectorAll(".save")) {
  save.hidden = false;
  const figure = save.closest("figure");
  const name = figure.id.replace("figure-", "");
  save.addEventListener("click", () => download(standalone(figure.querySelector("svg.chart")), `${name}.svg`));
}

for (const fold of document.querySelectorAll(".fold")) {
  fold.addEventListener("click", () => {
    const open = fold.getAttribute("aria-expanded") !== "true";
    fold.setAttribute("aria-expanded", String(open));
    for (const row of fold.closest("tbody").querySelectorAll(".single")) row.classList.toggle("open", open);
  });
}

for (const copy of document.querySelectorAll(".copy")) {
  if (!navigator.clipboard) continue;
  copy.hidden = false;
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(copy.parentElement.querySelector("code").textContent);
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
}
