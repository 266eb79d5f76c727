"""Networks of default-named Keras layers, and the same in PyTorch, recorded a step each."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import traceana

Shape = tuple[int, ...]
Step = tuple[str, tuple[int, ...], dict[str, Any]]


class Plan:
    """A network as steps; a value is the number of the step that made it, -1 the images."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def add(self, kind: str, *values: int, **options: Any) -> int:
        self.steps.append((kind, values, options))
        return len(self.steps) - 1

    def conv(self, x: int, given: int, made: int, kernel: int = 3, **options: Any) -> int:
        return self.add("conv", x, given=given, made=made, kernel=kernel, **options)


def vgg11() -> Plan:
    plan, x, given = Plan(), -1, 3
    for made in (4, 0, 8, 0, 16, 16, 0, 32, 32, 0, 32, 32, 0):
        x = plan.conv(x, given, made, relu=True) if made else plan.add("pool", x)
        given = made or given
    x = plan.add("flatten", x)
    for given, made in ((32, 64), (64, 64), (64, 10)):
        x = plan.add("dense", x, given=given, made=made)
    return plan


def unet() -> Plan:
    plan, x, given = Plan(), -1, 3
    skips = []
    for made in (4, 8):
        x = plan.add("bn", plan.conv(x, given, made), made=made)
        x = plan.conv(x, made, made, relu=True)
        skips.append(x)
        x, given = plan.add("pool", x), made
    x = plan.conv(x, 8, 16)
    for given, made in ((16, 8), (8, 4)):
        x = plan.add("tconv", x, given=given, made=made)
        x = plan.conv(plan.add("cat", skips.pop(), x), 2 * made, made)
        x = plan.conv(x, made, made)
    x = plan.add("mean", plan.conv(x, 4, 12, 1))
    plan.add("dense", x, given=12, made=10)
    return plan


def mobilenet() -> Plan:
    plan = Plan()
    x, given = plan.add("bn", plan.conv(-1, 3, 8), made=8), 8
    for made in (8, 12, 12, 16, 16):
        wide, entered = 4 * given, x
        x = plan.add("relu", plan.add("bn", plan.conv(x, given, wide, 1), made=wide))
        x = plan.add("bn", plan.add("depthwise", x, made=wide), made=wide)
        x = plan.add("bn", plan.conv(x, wide, made, 1), made=made)
        x, given = plan.add("add", entered, x) if given == made else x, made
    plan.add("dense", plan.add("mean", x), given=16, made=10)
    return plan


BLOCKS = (3, 4, 6, 4)


def densenet() -> Plan:
    """As Keras' own DenseNet, whose paddings are layers; with fewer blocks than DenseNet-121."""
    plan = Plan()
    x = plan.add("bn", plan.conv(-1, 3, 64, 7, stride=2, bias=False), made=64)
    x, given = plan.add("pool3", plan.add("relu", x)), 64
    for stage, blocks in enumerate(BLOCKS):
        for _ in range(blocks):
            y = plan.add("relu", plan.add("bn", x, made=given))
            y = plan.add("bn", plan.conv(y, given, 128, 1, bias=False), made=128)
            y = plan.conv(plan.add("relu", y), 128, 32, bias=False)
            x, given = plan.add("cat", x, y), given + 32
        y = plan.add("relu", plan.add("bn", x, made=given))
        if stage < len(BLOCKS) - 1:
            x = plan.add("average", plan.conv(y, given, given // 2, 1, bias=False))
            given //= 2
    plan.add("dense", plan.add("mean", y), given=given, made=10)
    return plan


PLANS: dict[str, Callable[[], Plan]] = {
    "vgg11": vgg11, "unet": unet, "mobilenet": mobilenet, "densenet": densenet,
}  # fmt: skip
IMAGES = (2, 32, 32, 3)


def in_keras(plan: Plan, named: bool) -> Any:
    import keras
    from keras import layers

    def layer(number: int, kind: str, o: dict[str, Any]) -> Any:
        name = {"name": f"step{number}_{kind}"} if named else {}
        relu = "relu" if o.get("relu") else None
        match kind:
            case "conv":
                return layers.Conv2D(
                    o["made"], o["kernel"], padding="same", activation=relu, **name
                )
            case "tconv":
                return layers.Conv2DTranspose(o["made"], 2, strides=2, **name)
            case "depthwise":
                return layers.DepthwiseConv2D(3, padding="same", **name)
            case "bn":
                return layers.BatchNormalization(**name)
            case "relu":
                return layers.ReLU(**name)
            case "pool":
                return layers.MaxPooling2D(**name)
            case "mean":
                return layers.GlobalAveragePooling2D(**name)
            case "flatten":
                return layers.Flatten(**name)
            case "dense":
                return layers.Dense(o["made"], **name)
            case "cat":
                return layers.Concatenate(**name)
            case _:
                return layers.Add(**name)

    values = {-1: keras.Input(IMAGES[1:])}
    for number, (kind, inputs, options) in enumerate(plan.steps):
        given = [values[one] for one in inputs]
        values[number] = layer(number, kind, options)(given if len(given) > 1 else given[0])
    return keras.Model(values[-1], values[len(plan.steps) - 1])


def record_keras(model: Any, shape: Shape, folder: Path, name: str, calls: int = 1) -> None:
    """Record two steps of training, compiled by ``tf.function``, and write the manifest."""
    import keras
    import tensorflow as tf

    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer: Any = keras.optimizers.SGD(1e-3)
    images, labels = tf.random.normal(shape), tf.zeros(shape[0], tf.int64)
    if not model.built:
        model(images)
    optimizer.build(model.trainable_variables)

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow is untyped
    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            made = [model(images * (1.0 + n), training=True) for n in range(calls)]
            loss = loss_of(labels, sum(made))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    step(images, labels).numpy()
    log = folder / f"{name}.log"
    tf.profiler.experimental.start(str(log))
    for number in range(2):
        with tf.profiler.experimental.Trace("train", step_num=number):
            step(images, labels).numpy()
    tf.profiler.experimental.stop()
    (made,) = log.rglob("*.xplane.pb")
    shutil.move(made, folder / f"{name}.xplane.pb")
    shutil.rmtree(log)
    traceana.describe(model, shape).write(folder / f"{name}.layers.json")


def all_of_keras(folder: Path) -> None:
    """Record all networks of Keras; its names of layers count those of the process."""
    import keras
    import tensorflow as tf
    from keras import layers
    from keras.src.applications.densenet import DenseNet

    tf.config.optimizer.set_experimental_options({"remapping": False})
    for name in ("vgg11", "unet", "mobilenet"):
        for named in (False, True):
            model = in_keras(PLANS[name](), named)
            record_keras(model, IMAGES, folder, f"{name}-{'own' if named else 'default'}")
    dense = DenseNet(BLOCKS, weights=None, input_shape=IMAGES[1:], classes=10)
    record_keras(dense, IMAGES, folder, "densenet-default")

    head = [layers.GlobalAveragePooling2D(), layers.Dense(10)]
    for name in ("sequential", "built-again"):
        body = [
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Conv2D(8, 3),
        ]
        model = keras.Sequential([keras.Input(IMAGES[1:]), *body, *map(_again, head)])
        record_keras(model, IMAGES, folder, name)
    record_keras(model, IMAGES, folder, "called-twice", calls=2)

    images = keras.Input(IMAGES[1:])
    inner = keras.Sequential(
        [layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Conv2D(4, 3)]
    )
    shared = layers.Conv2D(4, 3, padding="same")
    x = shared(shared(inner(layers.Conv2D(4, 3)(images))))
    x = layers.Conv2D(6, 3, name="block1_conv2")(layers.Conv2D(6, 3)(x))
    x = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    record_keras(keras.Model(images, x), IMAGES, folder, "nested")

    frames = keras.Input((4, 16, 16, 3))
    x = layers.TimeDistributed(layers.Conv2D(4, 3))(frames)
    x = layers.TimeDistributed(layers.GlobalAveragePooling2D())(x)
    x = layers.GRU(8)(layers.Bidirectional(layers.LSTM(8, return_sequences=True))(x))
    x = layers.Dense(10)(layers.Dense(16)(x))
    record_keras(keras.Model(frames, x), (2, 4, 16, 16, 3), folder, "recurrent")

    class Own(keras.Model):  # type: ignore[misc]  # Keras is untyped
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = layers.Conv2D(4, 3), layers.Conv2D(8, 3)
            self.block = keras.Sequential([layers.Conv2D(8, 1), layers.BatchNormalization()])
            self.last = layers.Dense(10)

        def call(self, images: Any, training: bool = False) -> Any:
            found = self.block(self.second(self.first(images)), training=training)
            return self.last(keras.ops.mean(found, (1, 2)))

    record_keras(Own(), IMAGES, folder, "subclassed")
    keras.config.set_dtype_policy("mixed_bfloat16")
    record_keras(in_keras(unet(), named=False), IMAGES, folder, "mixed")


def _again(layer: Any) -> Any:
    return type(layer).from_config({**layer.get_config(), "name": None})


def in_pytorch(plan: Plan) -> Any:
    import torch
    from torch import nn

    def module(kind: str, o: dict[str, Any]) -> Any:
        match kind:
            case "conv":
                around, bias = o["kernel"] // 2, o.get("bias", True)
                return nn.Conv2d(
                    o["given"], o["made"], o["kernel"], o.get("stride", 1), around, bias=bias
                )
            case "tconv":
                return nn.ConvTranspose2d(o["given"], o["made"], 2, 2)
            case "depthwise":
                return nn.Conv2d(o["made"], o["made"], 3, padding=1, groups=o["made"])
            case "bn":
                return nn.BatchNorm2d(o["made"])
            case "relu":
                return nn.ReLU()
            case "pool":
                return nn.MaxPool2d(2)
            case "pool3":
                return nn.MaxPool2d(3, 2, 1)
            case "average":
                return nn.AvgPool2d(2)
            case "mean":
                return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
            case "flatten":
                return nn.Flatten()
            case "dense":
                return nn.Linear(o["given"], o["made"])
            case _:
                return nn.Identity()

    class Network(nn.Module):  # type: ignore[misc]  # torch is not followed
        def __init__(self) -> None:
            super().__init__()
            self.steps = nn.ModuleList(module(kind, options) for kind, _, options in plan.steps)

        def forward(self, images: Any) -> Any:
            values = {-1: images}
            for number, (kind, inputs, options) in enumerate(plan.steps):
                given = [values[one] for one in inputs]
                if kind == "cat":
                    values[number] = torch.cat(given, 1)
                elif kind == "add":
                    values[number] = given[0] + given[1]
                else:
                    made = self.steps[number](given[0])
                    values[number] = torch.relu(made) if options.get("relu") else made
            return values[len(plan.steps) - 1]

    return Network()


def all_of_pytorch(folder: Path) -> None:
    """Record all networks in PyTorch."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    torch.set_num_threads(1)
    batch, height, width, channels = IMAGES
    images, labels = torch.randn(batch, channels, height, width), torch.zeros(batch).long()
    for name, plan in PLANS.items():
        model = in_pytorch(plan())
        traceana.describe(model, tuple(images.shape)).write(folder / f"{name}-pytorch.layers.json")
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        options: dict[str, Any] = {"record_shapes": True, "with_stack": True}
        with profile(activities=[ProfilerActivity.CPU], **options) as recorded:
            for number in range(2):
                with record_function(f"ProfilerStep#{number}"):
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(model(images), labels).backward()
                    optimizer.step()
        recorded.export_chrome_trace(str(folder / f"{name}-pytorch.json.gz"))
