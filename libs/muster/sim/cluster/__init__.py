"""Simulated Kubernetes clusters: the HTTP API, the kubelets and the pod-resources sockets, in one process.

The product speaks the real Kubernetes API; this package answers it where no cluster is at hand, closely enough that
kubernetes-asyncio and kubectl work unchanged and that everything which goes wrong in a real cluster (conflicts, late
or cut watches, expired versions, dead nodes, rejected pods) can be made to go wrong here on demand.

How the parts hang together::

    server (HTTP)  ->  dispatch  ->  api + pods + patch + validation  ->  store  ->  watches
                                                                           |
                     timers  <->  kubelets, controllers  <-----------------+ (synchronous listeners)

Everything below the server is plain synchronous code on a timer heap and a clock that is passed in, so a test (or a
simulation on virtual time) runs a whole cluster without sockets. The package shares no code with the scheduler:
a mistake in the scheduler's idea of a cluster must not be repeated here. It is a development and test asset.
"""
