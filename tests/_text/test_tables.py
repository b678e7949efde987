"""Tables as text, Markdown and LaTeX."""

from gossamer._text.tables import Table

TABLE = Table("Costs & gains", "In %.", ["set_1", "gain\n% ↑"], [["a|b", "5.0±0.1"], ["~^\\{}", "−1"]])


def test_text_has_a_line_per_row_below_both_lines_of_the_head():
    lines = TABLE.to_text().splitlines()
    assert lines[:3] == ["Costs & gains", "In %.", ""]
    assert lines[3:] == ["set_1     gain", "           % ↑", "a|b    5.0±0.1", "~^\\{}       −1"]


def test_markdown_escapes_its_bars():
    assert TABLE.to_markdown().splitlines()[2] == r"| a\|b | 5.0±0.1 |"


def test_latex_escapes_everything_that_means_something_there():
    lines = TABLE.to_latex(bold={(0, 1)}).splitlines()
    assert lines[2] == r"  \caption{Costs \& gains In \%.}"
    assert lines[5:7] == [r"    set\_1 & gain \\", r"    & \% $\uparrow$ \\"]
    assert lines[8:10] == [
        r"    a|b & \textbf{5.0$\pm$0.1} \\",
        r"    \textasciitilde{}\textasciicircum{}\textbackslash{}\{\} & $-$1 \\",
    ]
