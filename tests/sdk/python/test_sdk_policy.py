# SPDX-License-Identifier: Apache-2.0
"""Network policies: bad ones are Invalid, good ones and names Unsupported in this version, and deny-all is in force."""
import pytest
from cay import Invalid, NotFound, Unsupported
from cay._policy import check_policy

RULES = [
    {"transform": [{"headers": {"Authorization": "Basic x"}}, {}]},
    {"forwardURL": "https://proxy.example:8443/path"},
    {"response": {"statusCode": 403, "headers": {"X-A": ""}, "body": "no", "contentType": "text/plain"}},
    {"match": {"path": {"startsWith": "/api"}, "method": ["GET", "POST"], "queryString": [{"key": {"exact": "q"}}],
               "headers": [{"key": {"exact": "a"}, "value": {"regex": "^x"}}, {}]}, "transform": []},
]
GOOD = [
    "allow-all", {}, {"allow": []}, {"allow": ["example.com", "*.example.com", "*"]}, {"allow": None},
    {"allow": {"*": [], "github.com": RULES}}, {"subnets": {"allow": ["10.0.0.0/8", "::/0"], "deny": ["10.1.2.3/32"]}},
]


def rule(**members):
    return {"allow": {"a.example": [members]}}


BAD = [
    (None, "network policy"), (7, "network policy"), ([], "network policy"),
    ({"deny": []}, "deny"), ({7: []}, "7"),
    ({"allow": "a.example"}, "allow"), ({"allow": [7]}, "allow[0]"), ({"allow": ["a", "b c"]}, "allow[1]"),
    ({"allow": ["a" * 64]}, "allow[0]"), ({"allow": [".".join(["a" * 60] * 5)]}, "allow[0]"),
    ({"allow": ["*.*.a"]}, "allow[0]"), ({"allow": ["http://a"]}, "allow[0]"),
    ({"allow": {"-": []}}, "allow"), ({"allow": {"a.example": {}}}, "allow['a.example']"),
    ({"subnets": []}, "subnets"), ({"subnets": {"block": []}}, "block"),
    ({"subnets": {"allow": "::/0"}}, "subnets.allow"),
    *(({"subnets": {"deny": [bad]}}, "subnets.deny[0]") for bad in ("10.0.0.0", "10.0.0.0/33", "1.0.0.0/255.0.0.0", 8)),
    (rule(), "exactly one of transform"), (rule(match={}), "exactly one of transform"),
    (rule(transform=[], forwardURL="http://a"), "exactly one of transform"), (rule(drop=True), "drop"),
    (rule(transform={}), "transform"), (rule(transform=[{"body": ""}]), "transform[0]"),
    (rule(transform=[{"headers": {"a b": "x"}}]), "a b"), (rule(transform=[{"headers": {"a": "x\ny"}}]), "headers"),
    (rule(transform=[{"headers": {"a": 1}}]), "headers"),
    (rule(forwardURL="ftp://a"), "forwardURL"), (rule(forwardURL="nonsense"), "forwardURL"),
    (rule(forwardURL="http://a:99999999"), "forwardURL"), (rule(forwardURL=1), "forwardURL"),
    (rule(response={}), "statusCode"), (rule(response={"statusCode": 199}), "statusCode"),
    (rule(response={"statusCode": 600}), "statusCode"), (rule(response={"statusCode": "200"}), "statusCode"),
    (rule(response={"statusCode": True}), "statusCode"), (rule(response={"statusCode": 200, "body": b""}), "body"),
    (rule(response={"statusCode": 200, "contentType": "a\r\nb: c"}), "contentType"),
    (rule(transform=[], match=[]), "match"), (rule(transform=[], match={"host": {}}), "host"),
    (rule(transform=[], match={"path": "/x"}), "match.path"), (rule(transform=[], match={"path": {}}), "match.path"),
    (rule(transform=[], match={"path": {"exact": "a", "regex": "b"}}), "match.path"),
    (rule(transform=[], match={"path": {"exact": 1}}), "match.path"),
    (rule(transform=[], match={"method": "GET"}), "match.method"),
    (rule(transform=[], match={"method": ["G T"]}), "method[0]"),
    (rule(transform=[], match={"headers": [{"name": {}}]}), "headers[0]"),
    (rule(transform=[], match={"queryString": [{"key": "a"}]}), "queryString[0].key"),
]


@pytest.mark.parametrize("policy", GOOD + ["deny-all"], ids=str)
def test_good_policies(policy):
    check_policy(policy)


@pytest.mark.parametrize("policy, place", BAD, ids=str)
def test_bad_policies(policy, place):
    """Invalid, with the place in the message."""
    with pytest.raises(Invalid) as caught:
        check_policy(policy)
    assert place in caught.value.message and caught.value.detail == {"field": "network"}


def test_setting_the_policy_of_a_sandbox(twin, client, sandbox):
    """deny-all is in force; other good policies and any other name are Unsupported; bad ones Invalid."""
    twin(sandbox.set_network("deny-all"))
    for policy in GOOD + ["open"]:
        with pytest.raises(Unsupported):
            twin(sandbox.set_network(policy))
    with pytest.raises(Invalid):
        twin(sandbox.set_network({"allow": "x"}))
    with pytest.raises(NotFound):
        twin(client.attach("no-such").set_network("deny-all"))


def test_creating_with_a_policy(twin, client):
    with twin.within(client.sandbox(network="deny-all")) as sandbox:
        assert twin(sandbox.spec())["network"] == "deny-all"
    for name in ("allow-all", "open"):
        with pytest.raises(Unsupported, match=name) as caught:
            twin(client.create(network=name))
        assert caught.value.detail == {"field": "network"}
    with pytest.raises(Unsupported):
        twin(client.create(network={"allow": ["*"]}))
    with pytest.raises(Invalid):
        twin(client.create(network={"allowed": ["*"]}))
