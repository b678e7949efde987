"""Tables as text, Markdown and LaTeX."""

from gossamer._text.terminal import Table, to_csv

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


def test_names_of_anybody_are_no_formulas_no_markup_and_no_commands_to_a_terminal():
    table = Table("", "", ["name"], [["=1+1|<script>\x1b[31m\x9b0m\u202e"]])
    assert not set("\x1b\x9b\u202e") & set(table.to_text())
    assert "| =1+1\\|&lt;script>" in table.to_markdown()
    assert to_csv([["=1+1", "@x", "+a", "-1e3", "a=b", -2.5, "-", None]]) == "'=1+1,'@x,'+a,-1e3,a=b,-2.5,'-,\n"
