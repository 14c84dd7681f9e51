"""A Spec as a value: one spelling each, open dims, sums left to do; its GSPMD text, and what jax
writes of both."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from spmd.core.base.jax_private import use_shardy_partitioner
from spmd.core.sharding.value import OPEN, UNCONSTRAINED, UNSHARDED, Dim, Sharding, Spec

SIZES = {"one": 1, "data": 2, "model": 4}


def over_all(spec: Spec) -> Sharding:
    return Sharding.of(tuple(range(8)), (2, 4), ("data", "model"), spec)


class TestOneSpelling:
    def test_axes_of_one_device_and_whole_dims_at_the_end_say_nothing(self) -> None:
        spec = Spec((Dim(("one", "data")), UNSHARDED, Dim(("one",)), UNSHARDED))
        assert spec.over(SIZES) == Spec.of(("data",))

    def test_an_open_dim_at_the_end_says_something(self) -> None:
        assert Spec((UNSHARDED, OPEN, UNSHARDED)).over(SIZES) == Spec((UNSHARDED, OPEN)) != Spec()
        assert (
            over_all(Spec((UNSHARDED, OPEN)))
            is not over_all(Spec())
            is over_all(Spec((UNSHARDED, UNSHARDED)))
        )

    def test_on_one_device_nothing_is_open(self) -> None:
        assert Sharding.of((3,), (1,), ("data",), Spec((OPEN,))) is Sharding.of(
            (3,), (1,), ("data",)
        )

    def test_sums_stand_in_the_order_of_the_mesh(self) -> None:
        assert Spec((), ("model", "one", "data")).over(SIZES).unreduced == ("data", "model")

    def test_as_a_user_writes_it(self) -> None:
        spec = Spec((Dim(("data",)), OPEN, Dim(("model", "one"))))
        assert spec.entries(4) == ("data", UNCONSTRAINED, ("model", "one"), None)

    def test_closed(self) -> None:
        sharding = over_all(Spec((Dim(("data",)), OPEN)))
        assert sharding.is_open and not sharding.closed().is_open
        assert (
            sharding.closed() is over_all(Spec.of(("data",)))
            and sharding.closed().closed() is sharding.closed()
        )


class TestText:
    """As XLA prints it, with the list of devices in full."""

    @pytest.mark.parametrize(
        ("spec", "text"),
        [
            (
                Spec((OPEN, Dim(("data", "model")))),
                "{devices=[1,8]0,1,2,3,4,5,6,7} unspecified_dims=[0]",
            ),
            (Spec((OPEN, OPEN)), "{replicated} unspecified_dims=[0,1]"),
            (Spec((), ("data", "model")), "{unreduced}"),
            (
                Spec((Dim(("data",)),), ("model",)),
                "{devices=[2,1,4]0,1,2,3,4,5,6,7 last_tile_dims={unreduced}}",
            ),
            (
                Spec((), ("model",)),
                "{devices=[1,1,4,2]0,4,1,5,2,6,3,7 last_tile_dims={unreduced, replicated}}",
            ),
        ],
    )
    def test_text(self, spec: Spec, text: str) -> None:
        assert over_all(spec).text(2) == text

    def test_what_is_left_open_is_what_jax_writes(self) -> None:
        sharding = over_all(Spec((Dim(("data",)), OPEN)))
        program = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, sharding.jax))
        with use_shardy_partitioner(False):
            assert (
                'backend_config = "unspecified_dims=[1]"'
                in program.lower(jax.numpy.ones((4, 4))).as_text()
            )
        with use_shardy_partitioner(True):
            assert '[{"data"}, {?}]' in program.lower(jax.numpy.ones((4, 4))).as_text()


class TestSums:
    """A sum that is left to do can be said, of what jax made over axes of the user's, and cannot be
    asked for."""

    @pytest.mark.parametrize(
        "spec",
        [
            Spec((), ("data", "model")),
            Spec((Dim(("data",)),), ("model",)),
            Spec((), ("model",)),
            Spec((), ("data",)),
            Spec((UNSHARDED, Dim(("model",))), ("data",)),
        ],
    )
    def test_from_jax(self, spec: Spec) -> None:
        devices = np.array(jax.devices()).reshape(2, 4)
        mesh = jax.sharding.Mesh(devices, ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
        given = NamedSharding(mesh, PartitionSpec(*spec.entries(2), unreduced=set(spec.unreduced)))
        sharding = over_all(spec)
        assert Sharding.from_jax(given, 2, [over_all(Spec())]) is sharding
        named_anew = Sharding.from_jax(given, 2)
        assert named_anew.text(2) == sharding.text(2) and named_anew.spec.unreduced == ("sums",)

    def test_cannot_be_asked_for(self) -> None:
        with pytest.raises(NotImplementedError, match=r"unreduced=\('model',\).*AxisType.Explicit"):
            _ = over_all(Spec((), ("model",))).jax

    def test_jax_refuses_it_too(self) -> None:
        with pytest.raises(ValueError, match="Explicit"):
            NamedSharding(over_all(Spec()).jax.mesh, PartitionSpec(unreduced={"model"}))


class TestAllows:
    """The compiler's choice is compared in the dims that were asked for."""

    ASKED = over_all(Spec((Dim(("data",)), OPEN)))

    @pytest.mark.parametrize("chosen", [Spec.of(("data",)), Spec.of(("data",), ("model",))])
    def test_any_choice_for_the_open_dim(self, chosen: Spec) -> None:
        assert self.ASKED.allows(over_all(chosen).jax, 2)

    @pytest.mark.parametrize(
        "chosen", [Spec(), Spec.of(("model",)), Spec.of((), ("data",)), Spec.of(("data", "model"))]
    )
    def test_no_other_for_the_rest(self, chosen: Spec) -> None:
        assert not self.ASKED.allows(over_all(chosen).jax, 2)

    def test_the_same_number_of_pieces_on_other_devices(self) -> None:
        named = NamedSharding(
            self.ASKED.jax.mesh, PartitionSpec("data"), _logical_device_ids=(4, 5, 6, 7, 0, 1, 2, 3)
        )
        assert not self.ASKED.allows(named, 2)
