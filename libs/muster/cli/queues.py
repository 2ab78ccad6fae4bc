"""What the queue commands do: fields from options, the tree as an indented table, one queue in full."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from muster.api.v1 import queue_pb2
from muster.cli import show
from muster.cli.errors import CliError, Exit
from muster.cli.jobs import pairs
from muster.cli.options import Format
from muster.cli.session import run, unknown_queue
from muster.client import Client, ClientError, NotFound, Queue
from muster.client.requests import queue_message
from muster.core import resources
from muster.core.words import several

NO_AMOUNT = "none"  # takes a limit or a guarantee away
ALLOWANCES: Final = frozenset({"per_namespace", "per_user"})
AMOUNTS: Final = ALLOWANCES | {"guaranteed", "limit", "lending_limit"}
COUNTS: Final[Mapping[Literal["pending_jobs", "running_jobs"], None]] = {"pending_jobs": None, "running_jobs": None}

T = TypeVar("T")


@dataclass(frozen=True)
class Fields:
    """What the options of create and update say; None and "" mean: not given."""

    weight: int | None = None
    priority: int | None = None
    ordering: str = ""
    preemption: str = ""
    state: str = ""
    guaranteed: Sequence[str] | None = None
    limit: Sequence[str] | None = None
    lending_limit: Sequence[str] | None = None
    per_namespace: Sequence[str] | None = None
    per_user: Sequence[str] | None = None
    fair_by: str = ""
    min_runtime: str = ""
    preemption_backoff: str = ""
    preemption_backoff_max: str = ""
    half_life: str = ""

    def given(self) -> dict[str, Any]:
        """The given fields as `settled` takes them. Raises CliError."""
        named: dict[str, Any] = {"weight": self.weight, "priority": self.priority}
        named |= {"ordering": self.ordering or None, "preemption": self.preemption or None, "state": self.state or None}
        for name in AMOUNTS:
            named[name] = quantities(getattr(self, name), f"--{name.replace('_', '-')}")
        named |= {"fair_by": self.fair_by or None, "min_runtime": self.min_runtime or None}
        for name in ("half_life", "preemption_backoff", "preemption_backoff_max"):
            named[name] = getattr(self, name) or None
        given = {name: value for name, value in named.items() if value is not None}
        settled(queue_pb2.Queue(), given)  # says what is wrong before anybody is asked
        return given


def settled(current: queue_pb2.Queue, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given fields as the client takes them: of amounts, those that are not named stay. Raises CliError."""
    fields = dict(given)
    for name in sorted(AMOUNTS & given.keys()):
        _check_names(given[name], name)
        now = getattr(current, name)
        fields[name] = merged(now, given[name]) if name not in ALLOWANCES else _allowance(now, given[name], name)
    try:
        queue_message(current.path, fields)
    except ValueError as error:
        field, _, what = str(error).partition(": ")
        raise CliError(f"--{field.replace('_', '-')}: {what}", Exit.USAGE) from None
    return fields


def _check_names(given: Mapping[str, str], field: str) -> None:
    """Raises CliError for what is no resource; to take one away is fine."""
    others = tuple(COUNTS) if field in ALLOWANCES else ()
    for name, amount in given.items():
        wrong = name not in others and amount.lower() != NO_AMOUNT and resources.misnamed(name, others)
        if wrong:
            raise CliError(f"--{field.replace('_', '-')}: {wrong}", Exit.USAGE)


def _allowance(current: queue_pb2.Allowance, given: Mapping[str, str], name: str) -> dict[str, Any]:
    counts = {part: str(getattr(current, part)) for part in COUNTS if current.HasField(part)}
    after = merged(counts | dict(current.resources), given)
    for part in COUNTS & after.keys():
        if not after[part].isdecimal():
            raise CliError(f'--{name.replace("_", "-")}: {part} "{after[part]}" is not a number of jobs', Exit.USAGE)
    amounts = {resource: amount for resource, amount in after.items() if resource not in COUNTS}
    return {**{part: int(after[part]) for part in COUNTS if part in after}, "resources": amounts}


def quantities(texts: Sequence[str] | None, option: str) -> dict[str, str] | None:
    """`gpu=64,cpu=500` as resources by their full names. Raises CliError."""
    if texts is None:
        return None
    found: dict[str, str] = {}
    for name, text in pairs(texts, option).items():
        full, value = resources.full_pair(name, text)
        if full == resources.GPU_MILLI and text.lower() == NO_AMOUNT:
            full = resources.SHARED_DEVICE
        if full in found:
            raise CliError(f'{option} names "{full}" twice, the second time as "{name}"', Exit.USAGE)
        found[full] = value
    return found


def create(path: str, fields: Fields, *, parents: bool, address: str, output: Format) -> None:
    """Create a queue and, if asked, its missing parents."""
    given = settled(queue_pb2.Queue(path=path), fields.given())

    async def work(client: Client) -> Queue:
        if parents:
            await ensure(client, path.rpartition("/")[0])
        return await _checked(client, path, client.create_queue(path, **given))

    _report(run(address, work), "created", output)


async def ensure(client: Client, path: str, **fields: Any) -> None:
    """Create `path` and everything above it unless it exists; `fields` are for the last one."""
    if not path:
        return
    names = path.split("/")
    for depth in range(1, len(names) + 1):
        try:
            await client.create_queue("/".join(names[:depth]), **(fields if depth == len(names) else {}))
        except ClientError as error:
            if error.code != "ALREADY_EXISTS":
                raise


def update(path: str, fields: Fields, *, revision: int, address: str, output: Format) -> None:
    """Change the given fields of a queue. Of its amounts, those of resources that are not named stay as they are."""
    given = fields.given()
    if not given:
        raise CliError("nothing to change: give at least one of --weight, --limit, --state, ...", Exit.USAGE)

    async def work(client: Client) -> Queue:
        expected, wanted = revision, given
        if AMOUNTS & given.keys():
            current = (await _checked(client, path, client.get_queue(path))).proto
            expected, wanted = revision or current.revision, settled(current, given)
        return await _checked(client, path, client.update_queue(path, expected_revision=expected, **wanted))

    _report(run(address, work), "updated", output)


def merged(current: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The amounts with some of them changed, and those given as `none` taken away."""
    now = dict(resources.full_pair(name, amount) for name, amount in current.items())
    return {name: amount for name, amount in {**now, **given}.items() if amount.lower() != NO_AMOUNT}


def move(path: str, new_path: str, *, revision: int, address: str, output: Format) -> None:
    """Give a queue another place or name."""

    async def work(client: Client) -> Queue:
        return await _checked(client, path, client.move_queue(path, new_path, expected_revision=revision))

    _report(run(address, work), f"moved from {path}", output)


def delete(path: str, *, revision: int, address: str, output: Format) -> None:
    """Delete an empty queue."""

    async def work(client: Client) -> None:
        await _checked(client, path, client.delete_queue(path, expected_revision=revision))

    run(address, work)
    if show.is_machine(output):
        show.emit(output, {"path": path, "deleted": True})
    else:
        print(f"{path}  deleted")


def list_queues(root: str, *, address: str, output: Format) -> None:
    """Print the tree."""

    async def work(client: Client) -> list[Queue]:
        return list(await _checked(client, root, client.list_queues(root)))

    found = run(address, work)
    if show.is_machine(output):
        show.emit(output, {"queues": [queue.to_dict() for queue in found]})
    elif not found:
        print("no queues: create one with `muster queue create NAME`")
    else:
        print(tree(found, wide=output is Format.WIDE))


def tree(found: Sequence[Queue], wide: bool = False) -> str:
    """The queues as an indented table, parents first; amounts of the resource that tells most about each queue."""
    header = ["QUEUE", "WEIGHT", "GUARANTEED", "ENTITLED", "USED", "BORROWED", "LIMIT", "PENDING", "WAITING", "RUNNING"]
    header += ["STATE", "PRIORITY", "ORDERING", "REVISION"] if wide else ["STATE"]
    top = min((queue.path.count("/") for queue in found), default=0)
    return show.table(header, [_row(queue, top, wide) for queue in found], right=frozenset(range(1, 10)))


def _row(queue: Queue, top: int, wide: bool) -> list[str]:
    proto, status = queue.proto, queue.proto.status
    resource = show.main_resource(proto.guaranteed, proto.limit, status.usage, status.pending, status.entitled)
    depth = queue.path.count("/") - top
    name = "  " * depth + (queue.path.rpartition("/")[2] if depth else queue.path)
    row = [name, str(proto.weight if proto.HasField("weight") else 1)]
    row.append(show.one_amount(resource, proto.guaranteed))
    row.append(show.one_amount(resource, status.entitled))
    row += [show.one_amount(resource, amounts, unit=False) for amounts in (status.usage, status.borrowed)]
    row.append(show.one_amount(resource, proto.limit))
    row.append(show.one_amount(resource, status.pending))
    row += [f"{status.pending_jobs:,}", f"{status.running_jobs:,}", queue.state.upper()]
    if wide:
        ordering = show.plain(proto).get("ordering", "").removeprefix("QUEUE_ORDERING_") or "PRIORITY"
        row += [str(proto.priority), ordering, str(proto.revision)]
    return row


def describe(path: str, *, address: str, output: Format) -> None:
    """Print one queue in full, with its shares."""

    async def work(client: Client) -> tuple[Queue, queue_pb2.GetSharesResponse]:
        queue = await _checked(client, path, client.get_queue(path))
        return queue, await _checked(client, path, client.shares(path))

    queue, shares = run(address, work)
    if show.is_machine(output):
        show.emit(output, queue.to_dict() | {"shares": show.plain(shares.queues[0])})
        return
    print("\n".join([*portrait(queue, shares.queues[0]), *(f" warning: {told}" for told in shares.warnings)]))


def portrait(queue: Queue, shares: queue_pb2.QueueShares) -> list[str]:
    """One queue for people."""
    proto, status = queue.proto, queue.proto.status
    data = show.plain(proto)
    ordering = data.get("ordering", "").removeprefix("QUEUE_ORDERING_")
    preemption = data.get("preemption", "").removeprefix("QUEUE_PREEMPTION_")
    weight = proto.weight if proto.HasField("weight") else 1
    lines = [f"{queue.path}  {queue.state.upper()}   revision {queue.revision}   id {proto.id}"]
    lines.append(f" weight {weight}   priority {proto.priority}   ordering {ordering}   preemption {preemption}")
    if proto.HasField("min_runtime"):
        lines[1] += f"   min runtime {show.duration(proto.min_runtime.ToSeconds())}"
    if proto.HasField("preemption_backoff") or proto.HasField("preemption_backoff_max"):
        first, most = proto.preemption_backoff.ToSeconds(), proto.preemption_backoff_max.ToSeconds()
        told = [f"from {show.duration(first)}"] if first else []
        told += [f"up to {show.duration(most)}"] if most else []
        lines[1] += f"   backoff after preemption {' '.join(told)}"
    if proto.HasField("half_life"):
        lines[1] += f"   half-life {show.duration(proto.half_life.ToSeconds())}"
    for name, each in (("namespace", proto.per_namespace), ("user", proto.per_user)):
        if each.ListFields():
            lines.append(f" each {name} at most {allowance(each)}")
    lines.append(f" jobs {status.running_jobs:,} running, {status.pending_jobs:,} pending")
    if proto.labels:
        lines.append(" labels " + ", ".join(f"{key}={value}" for key, value in sorted(proto.labels.items())))
    return [*lines, *shares_table(shares)]


def allowance(each: queue_pb2.Allowance) -> str:
    """`2 running jobs, 8 gpu`."""
    parts = [several(each.pending_jobs, "waiting job")] if each.HasField("pending_jobs") else []
    parts += [several(each.running_jobs, "running job")] if each.HasField("running_jobs") else []
    return ", ".join(parts + ([show.amounts(each.resources)] if each.resources else []))


SHARE_COLUMNS = ("guaranteed", "entitled", "usage", "borrowed", "lent", "withheld", "pending", "limit")
PAST_COLUMN = "decayed"  # only where past usage counts


def shares_table(shares: queue_pb2.QueueShares) -> list[str]:
    """Resource by resource; a resource of which nothing is said is not shown."""
    past = (PAST_COLUMN,) if any(share.decayed for share in shares.resources) else ()
    columns = (*SHARE_COLUMNS, *past)
    rows = [
        [resources.short_name(share.resource)]
        + [show.one_amount(share.resource, _stated(share, column), unit=False) for column in columns]
        for share in shares.resources
        if share.resource != resources.PODS
    ]
    if not rows:
        return []
    header = ["RESOURCE", *(column.upper() for column in columns)]
    return [" " + line for line in show.table(header, rows, right=frozenset(range(1, len(header)))).splitlines()]


def _stated(share: queue_pb2.ResourceShare, column: str) -> dict[str, str]:
    text = getattr(share, column)
    return {share.resource: text} if text else {}


async def _checked(client: Client, path: str, call: Awaitable[T]) -> T:
    """Await `call`; an unknown queue gets the nearest path, a wrong value is the user's mistake."""
    try:
        return await call
    except NotFound as error:
        raise await unknown_queue(client, path, error) from None


def _report(queue: Queue, what: str, output: Format) -> None:
    if show.is_machine(output):
        show.emit(output, queue.to_dict())
    else:
        print(f"{queue.path}  {what}   revision {queue.revision}")
