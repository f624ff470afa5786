"""Who is served how much, without a queue in sight."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronosd.worker.pick import Picker

FULL = 10**9


class Shop:
    """Queues with given stocks, asked by a picker once every round trip."""

    def __init__(self, weights: list[int], stocks: list[int], *, strict: bool = False) -> None:
        self.picker = Picker(weights, strict=strict)
        self.stocks = stocks
        self.served: Counter[int] = Counter()
        self.asks: Counter[int] = Counter()
        self.order: list[int] = []
        self.now = 1000.0

    def cycle(self, free: int, round_trip_s: float = 0.0005) -> int:
        brought = 0
        for queue, count in self.picker.share(free, self.now):
            assert count > 0
            got = min(count, self.stocks[queue])
            self.picker.report(queue, count, got)
            self.stocks[queue] -= got
            self.served[queue] += got
            self.asks[queue] += 1
            self.order += [queue] * got
            brought += got
        assert brought <= free
        self.now += round_trip_s
        return brought


def nginx(weights: list[int], count: int) -> list[int]:
    """ngx_http_upstream_get_peer, less its handling of failures."""
    current = [0] * len(weights)
    chosen = []
    for _ in range(count):
        for i, weight in enumerate(weights):
            current[i] += weight
        best = max(range(len(weights)), key=lambda i: current[i])
        current[best] -= sum(weights)
        chosen.append(best)
    return chosen


@settings(deadline=None)  # other processes may have the processor meanwhile
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6).map(lambda w: sorted(w, reverse=True)))
def test_one_slot_at_a_time_is_nginxs_smooth_round_robin(weights: list[int]) -> None:
    shop = Shop(weights, [FULL] * len(weights))
    for _ in range(200):
        shop.cycle(1)
    assert shop.order == nginx(weights, 200)


@settings(deadline=None)
@given(
    weights=st.lists(st.integers(1, 100), min_size=1, max_size=6),
    frees=st.lists(st.integers(1, 300), min_size=1, max_size=20),
)
def test_full_queues_get_their_shares_whatever_number_of_slots_is_free(
    weights: list[int], frees: list[int]
) -> None:
    shop = Shop(weights, [FULL] * len(weights))
    total = 0
    while total < 20 * sum(weights):
        for free in frees:
            assert shop.cycle(free) == free, "a free slot went unused although every queue had work"
            total += free
    for queue, weight in enumerate(weights):
        fair = total * weight / sum(weights)
        assert abs(shop.served[queue] - fair) <= max(0.1 * fair, len(weights))


@pytest.mark.parametrize("free", [1, 2, 64])
def test_weights_hold_within_a_tenth(free: int) -> None:
    shop = Shop([6, 3, 1], [FULL, FULL, FULL])
    while sum(shop.served.values()) < 10_000:
        shop.cycle(free)
    total = sum(shop.served.values())
    for queue, share in enumerate((0.6, 0.3, 0.1)):
        assert shop.served[queue] / total == pytest.approx(share, rel=0.1)


def test_the_lightest_queue_progresses_beside_a_heavy_one() -> None:
    shop = Shop([1000, 1], [FULL, FULL])
    for _ in range(100):
        shop.cycle(64)
    assert shop.served[1] == pytest.approx(6400 / 1001, abs=1)


def test_a_share_that_is_not_used_falls_to_the_others() -> None:
    shop = Shop([6, 3, 1], [0, FULL, FULL])
    shop.cycle(10)
    before = sum(shop.served.values())
    for _ in range(1000):
        shop.cycle(10)
    assert sum(shop.served.values()) - before > 9_700, "probing the empty queue cost more than it may"
    assert shop.served[1] / shop.served[2] == pytest.approx(3, rel=0.1)


def test_an_empty_queue_does_not_save_credit_for_later() -> None:
    shop = Shop([1, 1], [0, FULL])
    for _ in range(1000):
        shop.cycle(10)
    shop.stocks[0] = FULL
    shop.picker.stocked(0)
    before = shop.served.copy()
    for _ in range(10):
        shop.cycle(10)
    assert shop.served[0] - before[0] == pytest.approx(50, abs=2)
    assert shop.served[1] - before[1] == pytest.approx(50, abs=2)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("free", [1, 2, 64])
def test_an_empty_queue_is_found_to_have_work_again_within_milliseconds(free: int, strict: bool) -> None:
    shop = Shop([6, 3, 1], [0, 0, FULL], strict=strict)
    for _ in range(100):
        shop.cycle(free)
    for queue in (0, 1):
        shop.stocks[queue] = 5
        began = shop.now
        while not shop.stocks[queue] < 5:
            shop.cycle(free)
        assert shop.now - began < 0.02


def test_asking_empty_queues_is_bounded() -> None:
    shop = Shop([6, 3, 1], [0, 0, FULL])
    for _ in range(2000):  # a second
        shop.cycle(64)
    assert shop.asks[0] < 200
    assert shop.asks[1] < 200


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("round_trip_s", [0.0005, 0.05])
def test_one_slot_is_not_spent_on_asking_empty_queues_for_ever(strict: bool, round_trip_s: float) -> None:
    """With one slot and a Redis further away than the interval between two probes, the probes of two empty
    queues were due in every cycle and took the slot: the third queue, which had work, was never asked. With
    strict priority it took no distance.
    """
    shop = Shop([6, 3, 1], [0, 0, FULL], strict=strict)
    for _ in range(100):
        shop.cycle(1, round_trip_s)
    assert shop.served[2] >= 45


def test_strict_priority_drains_the_heavier_queue_first() -> None:
    shop = Shop([6, 3, 1], [100, 50, 20], strict=True)
    while any(shop.stocks):
        shop.cycle(7)
    first_light = shop.order.index(2)
    assert 1 not in shop.order[:100]
    assert sorted(shop.order[:first_light].count(q) for q in (0, 1)) == [50, 100]


def test_strict_priority_turns_to_a_heavier_queue_as_soon_as_it_has_work() -> None:
    shop = Shop([6, 1], [0, FULL], strict=True)
    for _ in range(10):
        shop.cycle(8)
    shop.stocks[0] = 100
    shop.order.clear()
    while shop.stocks[0]:
        shop.cycle(8)
    assert shop.order.count(1) <= 8 + 7


def test_strict_priority_falls_through_to_lighter_queues() -> None:
    shop = Shop([6, 3, 1], [0, 0, FULL], strict=True)
    for _ in range(100):
        shop.cycle(64)
    assert shop.served[2] > 6000


def test_all_queues_are_asked_at_the_start() -> None:
    shop = Shop([6, 3, 1], [0, 0, 0])
    assert not shop.picker.all_empty_but(())
    shop.cycle(64)
    assert shop.asks == {0: 1, 1: 1, 2: 1}
    assert shop.picker.all_empty_but(())
    shop.picker.stocked(1)
    assert not shop.picker.all_empty_but(())


def test_a_queue_that_is_left_out_is_not_asked_and_blocks_nobody() -> None:
    picker = Picker([6, 3, 1])
    asks = dict(picker.share(64, 0.0, {0}))
    assert 0 not in asks
    assert sum(asks.values()) == 64
    assert picker.share(64, 0.0, {0, 1, 2}) == []


def test_nothing_is_asked_without_a_free_slot() -> None:
    picker = Picker([6, 3, 1])
    assert picker.share(0, 0.0) == []
    assert picker.share(-3, 0.0) == []


def test_a_queue_with_limits_is_asked_after_an_offer_only_and_until_it_gives_less() -> None:
    picker = Picker([6, 1], limited={0})
    picker.report(1, 1, 0)
    picker.stocked(0)
    assert picker.all_empty_but(())
    assert not picker.has_offer(())
    assert picker.share(64, 10.0) == [(1, 1)], "no probe of the limited one"
    picker.offer(0, 3)
    assert not picker.all_empty_but(())
    assert picker.has_offer(())
    assert not picker.has_offer({0})
    assert dict(picker.share(64, 10.0))[0] == 3
    picker.report(0, 3, 3)
    assert dict(picker.share(2, 10.0))[0] == 2, "it gave all it was asked for: it may have more"
    picker.report(0, 2, 1)
    assert 0 not in dict(picker.share(64, 20.0))
    assert 0 not in dict(picker.share(64, 30.0))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("weights", [[6, 3, 1], [1, 3, 6]])
def test_what_an_offer_leaves_of_a_queues_share_falls_to_the_others(weights: list[int], strict: bool) -> None:
    picker = Picker(weights, strict=strict, limited={0})
    for _ in range(50):
        picker.offer(0, 2)
        asks = dict(picker.share(64, 0.0))
        assert sum(asks.values()) == 64
        assert asks.get(0, 0) <= 2
    if not strict:
        assert asks[1] / asks[2] == pytest.approx(weights[1] / weights[2], rel=0.2)


def test_an_offer_does_not_take_back_a_larger_one_that_still_holds() -> None:
    picker = Picker([1], limited={0})
    picker.offer(0, 5)
    picker.offer(0, 2)
    assert picker.share(64, 0.0) == [(0, 5)]
    picker.report(0, 5, 1)
    picker.offer(0, 2)
    assert picker.share(64, 0.0) == [(0, 2)]


def test_an_offer_for_a_single_ask_is_not_asked_on_after_it_was_given_in_full() -> None:
    picker = Picker([1], limited={0})
    picker.offer(0, 2, is_single=True)
    assert picker.share(64, 0.0) == [(0, 2)]
    picker.report(0, 2, 2)
    assert picker.share(64, 0.0) == []
    picker.offer(0, 3)
    picker.offer(0, 1, is_single=True)
    picker.report(0, 3, 3)
    assert picker.share(64, 0.0) == [(0, 3)], "the other offer stands"


def test_limited_queues_alone_leave_slots_free_rather_than_ask_for_more_than_was_offered() -> None:
    picker = Picker([3, 1], limited={0, 1})
    picker.offer(0, 4)
    picker.offer(1, 30)
    assert dict(picker.share(64, 0.0)) == {0: 4, 1: 16}


def test_a_queue_that_is_left_out_does_not_keep_the_worker_from_blocking_on_the_others() -> None:
    picker = Picker([6, 3, 1])
    picker.report(1, 1, 0)
    picker.report(2, 1, 0)
    assert not picker.all_empty_but(())
    assert picker.all_empty_but({0})


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(1, 20), min_size=9, max_size=40),
    st.lists(st.integers(1, 200), min_size=1, max_size=5),
)
def test_of_many_queues_few_are_asked_at_a_time_and_each_gets_its_share(
    weights: list[int], frees: list[int]
) -> None:
    """Fifty queues were asked for one or two tasks each: the server did little but begin scripts."""
    shop = Shop(weights, [FULL] * len(weights))
    for turn in range(200):
        before = sum(shop.asks.values())
        free = frees[turn % len(frees)]
        assert shop.cycle(free) == free
        assert sum(shop.asks.values()) - before <= 8
    total, given_out = sum(weights), sum(shop.served.values())
    for queue, weight in enumerate(weights):
        due = given_out * weight / total
        # as far as it can lag: what the others are given at once, while it waits for its turn
        assert abs(shop.served[queue] - due) <= 2 * max(frees) * (1 + len(weights) / 8), (queue, due)


def test_queues_that_are_all_in_debt_are_served_all_the_same() -> None:
    shop = Shop([1] * 12, [FULL] * 12)
    shop.picker._credit = [-(10**6)] * 12
    assert shop.cycle(5) == 5
