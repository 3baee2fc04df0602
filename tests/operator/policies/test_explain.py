"""What a policy does, in plain words; the exact text, since people read it before they trust it."""

from __future__ import annotations

import pytest

from mx_operator.core import rules
from mx_operator.policies import durations, read_policy
from mx_operator.policies.explain import explain
from tests.operator.policies.cases import FINE, all_of, policy, put

PLAIN = """\
fleet writes the load of every source to the MX server modelexpress-server.mx:8001
  server      through gRPC; plain text; no token; at most 100 writes a second
  prometheus  http://prometheus.monitoring:9090; no credentials; 5s for a query; incomplete answers are refused
  signal      exporter: mx_source_load
              joined by the address in k8s_pod_ip; gpu tells ranks apart; a source with several series is left alone
  freshness   a sample older than 40s counts as none
  value       the signal, or the source's own number where that is larger; without a reading nothing is written
  rhythm      every 2s, where the stored load is off by more than 0.05, within 27s after a heartbeat of the source \
(one is expected every 30s)
  harm        a dead source stays selectable at most 29s longer: 1m59s with the server's timeout at 1m30s
  precedence  priority 0; of several policies the highest has a source"""

FULL = """\
fleet observes only: it would write the load of sources of meta/* but not of *-draft to the MX server [::1]:8001
  server      by JSON patch on ModelMetadata in mx; TLS with a client certificate; token from \
/var/run/secrets/tokens/modelexpress; at most 12.5 writes a second
  prometheus  https://mimir.example:443/prometheus; OAuth 2 as i at https://l/t; 3s for a query; headers \
X-Scope-OrgID; incomplete answers are counted as complete
  signal      a: x{pod=~"(a|b){2}", y!='#'} # a comment ( times 0.01
              joined by the pod name in pod and namespace; one series serves all ranks of a pod; a source with several \
series is left alone
  signal      b_2: {__name__='x'}
              joined by the instance in instance; one series serves all ranks of a pod; of several series the largest \
counts
  signal      c-3: sum by (uid) (x)
              sampled at: min by (uid) (timestamp(x))
              joined by the pod uid in uid; one series serves all ranks of a pod; a source with several series is left \
alone
  freshness   a sample older than 1m30s counts as none
  value       the largest signal, whatever the source's own number; without a reading 0.5 is written
  rhythm      every 1s500ms, where the stored load is off by more than 0
  harm        none: nothing is written
  precedence  priority -5; of several policies the highest has a source"""


@pytest.mark.parametrize(("name", "text"), [("the least", PLAIN), ("everything", FULL)])
def test_the_whole_text(name: str, text: str) -> None:
    assert explain(read_policy(policy(FINE[name]))[0]) == text


def test_the_harm_is_the_write_protocols_bound() -> None:
    read, _ = read_policy(policy(put("sourceHeartbeat", "1m")))
    made = rules.strictest([read])
    bound = durations.show(3 * 60 + made.window + rules.GRACE)
    assert f"longer: {bound} with" in explain(read)


def test_the_kubernetes_writer_does_no_harm_to_liveness() -> None:
    change = all_of(put("server.writer", "kubernetes"), put("server.namespace", "mx"))
    text = explain(read_policy(policy(change))[0])
    assert "harm        none to liveness" in text
    assert "after a heartbeat" not in text
