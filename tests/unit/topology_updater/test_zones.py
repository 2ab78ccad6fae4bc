"""The kubelet's answers as zones: each peculiarity of the pod-resources API."""

from __future__ import annotations

from muster import podresources as api
from muster.core.model import Zone
from muster_topology_updater.zones import DeviceIndex, natural, parse_cpulist, zones_of

GI = 1 << 30
GPU = "nvidia.com/gpu"


def topology(*nodes: int) -> object:
    return api.TopologyInfo(nodes=[api.NUMANode(ID=node) for node in nodes])


def device(name: str, *nodes: int, resource: str = GPU) -> object:
    return api.ContainerDevices(resource_name=resource, device_ids=[name], topology=topology(*nodes))


def memory(size: int, *nodes: int, kind: str = "memory") -> object:
    return api.ContainerMemory(memory_type=kind, size=size, topology=topology(*nodes))


def pod(*containers: object) -> object:
    return api.PodResources(name="p", containers=containers)


def half(cpu: int) -> int:
    return cpu // 4


def test_cpus_devices_and_memory_by_zone() -> None:
    allocatable = api.AllocatableResourcesResponse(
        cpu_ids=range(8),
        devices=[device("GPU-0", 0), device("GPU-1", 1), device("GPU-2", 1)],
        memory=[memory(4 * GI, 0), memory(4 * GI, 1), memory(GI, 1, kind="hugepages-1Gi")],
    )
    pods = [
        pod(
            api.ContainerResources(cpu_ids=[4, 5], devices=[device("GPU-2", 1)], memory=[memory(GI, 1)]),
            api.ContainerResources(cpu_ids=[0]),
        )
    ]
    assert zones_of(allocatable, pods, DeviceIndex(), half) == (
        Zone(0, (("cpu", 4000), ("memory", 4 * GI), (GPU, 1000)), (("cpu", 1000),), (0,)),
        Zone(
            1,
            (("cpu", 4000), ("hugepages-1Gi", GI), ("memory", 4 * GI), (GPU, 2000)),
            (("cpu", 2000), ("memory", GI), (GPU, 1000)),
            (1, 2),
        ),
    )


def test_a_device_of_two_zones_comes_in_two_entries_and_counts_once_in_each() -> None:
    entries = [device("GPU-0", 0), device("GPU-0", 1)]
    zones = zones_of(
        api.AllocatableResourcesResponse(devices=entries),
        [pod(api.ContainerResources(devices=entries))],
        DeviceIndex(),
        half,
    )
    assert zones == tuple(Zone(n, ((GPU, 1000),), ((GPU, 1000),), (0,)) for n in (0, 1))


def test_a_device_without_topology_is_in_no_zone_but_has_an_index() -> None:
    index = DeviceIndex()
    zones = zones_of(api.AllocatableResourcesResponse(devices=[device("GPU-0"), device("GPU-1", 0)]), [], index, half)
    assert zones == (Zone(0, ((GPU, 1000),), (), (1,)),)


def test_other_devices_count_in_units() -> None:
    entries = [device("vf-1", 0, resource="rdma/vf"), device("vf-2", 0, resource="rdma/vf")]
    (zone,) = zones_of(api.AllocatableResourcesResponse(devices=entries), [], DeviceIndex(), half)
    assert zone == Zone(0, (("rdma/vf", 2),), (), ())


def test_a_memory_block_over_two_nodes_is_split_as_the_kubelet_fills_them() -> None:
    allocatable = api.AllocatableResourcesResponse(memory=[memory(4 * GI, 0), memory(4 * GI, 1)])
    pods = [
        pod(api.ContainerResources(memory=[memory(GI, 0)])),
        pod(api.ContainerResources(memory=[memory(5 * GI, 1, 0), memory(0, 1)])),
    ]
    used = [dict(zone.used)["memory"] for zone in zones_of(allocatable, pods, DeviceIndex(), half)]
    assert used == [4 * GI, 2 * GI]


def test_pod_level_resources_overlap_the_containers_and_are_not_added() -> None:
    allocatable = api.AllocatableResourcesResponse(cpu_ids=range(4))
    listed = api.PodResources(cpu_ids=[0, 1], containers=[api.ContainerResources(cpu_ids=[0, 1])])
    (zone,) = zones_of(allocatable, [listed], DeviceIndex(), half)
    assert zone.used == (("cpu", 2000),)


def test_cpus_whose_zone_is_unknown_are_in_none() -> None:
    assert zones_of(api.AllocatableResourcesResponse(cpu_ids=range(4)), [], DeviceIndex(), lambda _cpu: None) == ()


def test_indices_follow_numbers_and_are_never_given_again() -> None:
    index = DeviceIndex()
    index.learn(["GPU-10", "GPU-2"])
    assert (index.of("GPU-2"), index.of("GPU-10")) == (0, 1)
    index.learn(["GPU-1"])  # unhealthy until now
    assert (index.of("GPU-1"), index.of("GPU-2"), len(index)) == (2, 0, 3)
    assert sorted(["b10", "b9", "a1x2", "10", "9"], key=natural) == ["9", "10", "a1x2", "b9", "b10"]


def test_cpu_lists_of_the_kernel() -> None:
    assert parse_cpulist("0-3,8,10-11\n") == [0, 1, 2, 3, 8, 10, 11]
    assert parse_cpulist("\n") == []
