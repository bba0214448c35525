"""The graph of parts: names stand where no line goes."""

from sinkinterp.report.explained_graph import graph

EDGES = [
    ("neuron 1.7", "MLP 1", 0.9), ("neuron 1.2", "MLP 1", 0.2), ("MLP 1", "head 3.0", 0.6), ("MLP 1", "head 3.1", 0.5),
    ("MLP 2", "head 3.0", 0.2), ("embedding", "head 5.2", 0.3), ("MLP 1", "head 5.2", 0.7),
]  # fmt: skip


def test_a_name_beside_a_node_has_no_node_of_its_row_and_no_line_on_its_side():
    nodes = graph(EDGES, "", "").data[-1]
    at = dict(zip(nodes.text, zip(nodes.x, nodes.y, strict=True), strict=True))
    side = dict(zip(nodes.text, nodes.textposition, strict=True))
    assert side["neuron 1.7"] == "middle left" and side["neuron 1.2"] == "middle right"
    assert all(side[end] == "bottom center" for end in ("head 3.0", "head 3.1", "head 5.2"))
    for name, (x, y) in at.items():
        beside = [other for other, (_, row) in at.items() if row == y and other != name]
        if side[name] != "bottom center":
            assert all((at[other][0] > x) == (side[name] == "middle left") for other in beside)


def test_an_arrow_is_wider_than_its_line():
    for line in graph(EDGES, "", "").data[:-1]:
        assert line.marker.size[1] >= max(14, 2 * line.line.width)
