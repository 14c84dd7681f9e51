"""Losses of detectors in the form that libraries have: a matcher, foreground rows by torch.where, a
Python loop over the images, sums divided by counts."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES, IMAGES, CHANNELS, GRID, STRIDE = 5, 2, 8, 6, 16
BELOW, BETWEEN = -1, -2

Target = dict[str, Tensor]
Losses = dict[str, Tensor]


def areas(boxes: Tensor) -> Tensor:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def iou(boxes: Tensor, others: Tensor) -> Tensor:
    """The intersection over union of each box with each other."""
    low = torch.max(boxes[:, None, :2], others[:, :2])
    high = torch.min(boxes[:, None, 2:], others[:, 2:])
    sides = (high - low).clamp(min=0)
    both = sides[:, :, 0] * sides[:, :, 1]
    return both / (areas(boxes)[:, None] + areas(others) - both)


def matches_of(quality: Tensor, low: float, high: float, *, keep_best: bool) -> Tensor:
    """For each column the row of the best quality, or BELOW or BETWEEN the bounds; keep_best: the
    best columns of each row count as matched."""
    values, matches = quality.max(dim=0)
    best = matches.clone()
    below, between = values < low, (values >= low) & (values < high)
    matches[below] = BELOW
    matches[between] = BETWEEN
    if keep_best:
        highest, _ = quality.max(dim=1)
        columns = torch.where(quality == highest[:, None])[1]
        matches[columns] = best[columns]
    return matches


def encoded(boxes: Tensor, anchors: Tensor, weights: Sequence[float] = (1, 1, 1, 1)) -> Tensor:
    """Boxes relative to anchors: the shift of the centre and the logarithm of the sides."""
    sides, anchor_sides = boxes[:, 2:] - boxes[:, :2], anchors[:, 2:] - anchors[:, :2]
    shift = boxes[:, :2] + 0.5 * sides - anchors[:, :2] - 0.5 * anchor_sides
    scale = torch.as_tensor(weights, dtype=boxes.dtype, device=boxes.device)
    return scale * torch.cat((shift / anchor_sides, torch.log(sides / anchor_sides)), dim=1)


def decoded(deltas: Tensor, anchors: Tensor) -> Tensor:
    """The boxes that `encoded` would give these."""
    widths, heights = anchors[:, 2] - anchors[:, 0], anchors[:, 3] - anchors[:, 1]
    x, y = anchors[:, 0] + 0.5 * widths, anchors[:, 1] + 0.5 * heights
    dx, dy, dw, dh = deltas.unbind(1)
    dw, dh = dw.clamp(max=math.log(1000 / 16)), dh.clamp(max=math.log(1000 / 16))
    x, y, w, h = dx * widths + x, dy * heights + y, dw.exp() * widths, dh.exp() * heights
    return torch.stack((x - 0.5 * w, y - 0.5 * h, x + 0.5 * w, y + 0.5 * h), dim=1)


def focal(logits: Tensor, targets: Tensor, alpha: float = 0.25, gamma: float = 2) -> Tensor:
    probability = torch.sigmoid(logits)
    losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    of_target = probability * targets + (1 - probability) * (1 - targets)
    losses = losses * ((1 - of_target) ** gamma)
    return ((alpha * targets + (1 - alpha) * (1 - targets)) * losses).sum()


def giou(boxes: Tensor, others: Tensor) -> Tensor:
    """The sum of generalized-IoU losses of pairs of boxes."""
    x1, y1, x2, y2 = boxes.unbind(dim=-1)
    x1g, y1g, x2g, y2g = others.unbind(dim=-1)
    xa, ya, xb, yb = torch.max(x1, x1g), torch.max(y1, y1g), torch.min(x2, x2g), torch.min(y2, y2g)
    both = torch.zeros_like(x1)
    mask = (yb > ya) & (xb > xa)
    both[mask] = (xb[mask] - xa[mask]) * (yb[mask] - ya[mask])
    union = (x2 - x1) * (y2 - y1) + (x2g - x1g) * (y2g - y1g) - both
    ratio = both / (union + 1e-7)
    xc, yc, xd, yd = torch.min(x1, x1g), torch.min(y1, y1g), torch.max(x2, x2g), torch.max(y2, y2g)
    hull = (xd - xc) * (yd - yc)
    loss = 1 - (ratio - (hull - union) / (hull + 1e-7))
    return loss.sum()


def anchors_of(sizes: Sequence[float], device: torch.device | str) -> Tensor:
    """Square anchors of these sides around the places of the grid."""
    places = (torch.arange(GRID, device=device) + 0.5) * STRIDE
    y, x = (grid.reshape(-1) for grid in torch.meshgrid(places, places, indexing="ij"))
    corners = torch.tensor([-0.5, -0.5, 0.5, 0.5], device=device)
    half = torch.tensor(sizes, device=device)[:, None] * corners
    return (torch.stack((x, y, x, y), dim=1)[:, None] + half).reshape(-1, 4)


class Detector(nn.Module):
    """A small backbone with a head of `outputs` numbers at each place of the grid."""

    def __init__(self, *outputs: int):
        super().__init__()
        self.backbone = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.heads = nn.ModuleList(nn.Conv2d(CHANNELS, number, 3, padding=1) for number in outputs)

    def forward(self, images: Tensor) -> list[Tensor]:
        """The outputs of each head: images, places, numbers."""
        features = F.relu(self.backbone(images))
        return [head(features).flatten(2).transpose(1, 2) for head in self.heads]


class RetinaNet(Detector):
    """Focal loss over all anchors, smooth L1 over the foreground."""

    SIZES = (16.0, 28.0)

    def __init__(self) -> None:
        super().__init__(len(self.SIZES) * CLASSES, len(self.SIZES) * 4)

    def losses(self, images: Tensor, targets: list[Target]) -> Losses:
        scores, boxes = self(images)
        scores, boxes = scores.reshape(IMAGES, -1, CLASSES), boxes.reshape(IMAGES, -1, 4)
        anchors = [anchors_of(self.SIZES, images.device) for _ in targets]
        matched = []
        for anchors_here, target in zip(anchors, targets, strict=True):
            if target["boxes"].numel() == 0:
                matched.append(
                    torch.full((anchors_here.size(0),), -1, dtype=torch.int64, device=images.device)
                )
                continue
            matched.append(matches_of(iou(target["boxes"], anchors_here), 0.4, 0.5, keep_best=True))
        return {
            "classes": self.of_classes(targets, scores, matched),
            "boxes": self.of_boxes(targets, boxes, anchors, matched),
        }

    def of_classes(self, targets: list[Target], scores: Tensor, matched: list[Tensor]) -> Tensor:
        losses = []
        for target, logits, matches in zip(targets, scores, matched, strict=True):
            foreground = matches >= 0
            num_foreground = foreground.sum()
            wanted = torch.zeros_like(logits)
            wanted[foreground, target["labels"][matches[foreground]]] = 1.0
            valid = matches != BETWEEN
            losses.append(focal(logits[valid], wanted[valid]) / max(1, num_foreground))
        return sum(losses[1:], losses[0]) / len(targets)

    def of_boxes(
        self,
        targets: list[Target],
        regression: Tensor,
        anchors: list[Tensor],
        matched: list[Tensor],
    ) -> Tensor:
        losses = []
        for target, deltas, anchors_here, matches in zip(
            targets, regression, anchors, matched, strict=True
        ):
            foreground = torch.where(matches >= 0)[0]
            num_foreground = foreground.numel()
            boxes = target["boxes"][matches[foreground]]
            deltas, anchors_here = deltas[foreground, :], anchors_here[foreground, :]
            loss = F.smooth_l1_loss(deltas, encoded(boxes, anchors_here), reduction="sum")
            losses.append(loss / max(1, num_foreground))
        return sum(losses[1:], losses[0]) / max(1, len(targets))


class FCOS(Detector):
    """Focal loss over all places; GIoU and centerness over the foreground of all images."""

    def __init__(self) -> None:
        super().__init__(CLASSES, 4, 1)

    def losses(self, images: Tensor, targets: list[Target]) -> Losses:
        scores, regression, centerness = self(images)
        anchors = [anchors_of((STRIDE,), images.device) for _ in targets]
        matched = [self.matches(*pair) for pair in zip(anchors, targets, strict=True)]
        all_classes, all_boxes = [], []
        for target, matches in zip(targets, matched, strict=True):
            if len(target["labels"]) == 0:
                classes = target["labels"].new_zeros((len(matches),))
                boxes = target["boxes"].new_zeros((len(matches), 4))
            else:
                classes = target["labels"][matches.clip(min=0)]
                boxes = target["boxes"][matches.clip(min=0)]
            classes[matches < 0] = -1
            all_classes.append(classes)
            all_boxes.append(boxes)
        classes, boxes = torch.stack(all_classes), torch.stack(all_boxes)
        grid = torch.stack(anchors)
        foreground = classes >= 0
        num_foreground = foreground.sum().item()
        wanted = torch.zeros_like(scores)
        wanted[foreground, classes[foreground]] = 1.0
        places = (grid[..., :2] + grid[..., 2:]) / 2
        sides = grid[..., 2:] - grid[..., :2]
        distances = regression.exp() * torch.cat((sides, sides), -1)
        predicted = torch.cat((places - distances[..., :2], places + distances[..., 2:]), dim=-1)
        of_boxes = giou(predicted[foreground], boxes[foreground])
        ltrb = torch.cat((places - boxes[..., :2], boxes[..., 2:] - places), dim=-1)[foreground]
        if len(ltrb) == 0:
            wanted_centerness = ltrb.new_zeros(ltrb.size()[:-1])
        else:
            x, y = ltrb[:, [0, 2]], ltrb[:, [1, 3]]
            wanted_centerness = torch.sqrt(
                (x.min(dim=-1)[0] / x.max(dim=-1)[0]) * (y.min(dim=-1)[0] / y.max(dim=-1)[0])
            )
        of_centerness = F.binary_cross_entropy_with_logits(
            centerness.squeeze(dim=2)[foreground], wanted_centerness, reduction="sum"
        )
        count = max(1, num_foreground)
        return {
            "classes": focal(scores, wanted) / count,
            "boxes": of_boxes / count,
            "centerness": of_centerness / count,
        }

    def matches(self, anchors: Tensor, target: Target) -> Tensor:
        """For each place the smallest box around it, or -1."""
        boxes = target["boxes"]
        if boxes.numel() == 0:
            return torch.full((anchors.size(0),), -1, dtype=torch.int64, device=anchors.device)
        centers, places = (boxes[:, :2] + boxes[:, 2:]) / 2, (anchors[:, :2] + anchors[:, 2:]) / 2
        sides = anchors[:, 2] - anchors[:, 0]
        near = (places[:, None] - centers[None]).abs().max(dim=2).values < 1.5 * sides[:, None]
        x, y = places.unsqueeze(dim=2).unbind(dim=1)
        x0, y0, x1, y1 = boxes.unsqueeze(dim=0).unbind(dim=2)
        distances = torch.stack((x - x0, y - y0, x1 - x, y1 - y), dim=2)
        near &= distances.min(dim=2).values > 0
        quality = near.to(torch.float32) * (1e8 - areas(boxes)[None])
        values, matches = quality.max(dim=1)
        matches[values < 1e-5] = -1
        return matches


class Sampler(NamedTuple):
    """Draws foreground and background rows of each image, at most so many."""

    rows: int
    share: float

    def __call__(self, matched: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        masks: tuple[list[Tensor], list[Tensor]] = [], []
        for matches in matched:
            positive, negative = torch.where(matches >= 1)[0], torch.where(matches == 0)[0]
            num_positive = min(positive.numel(), int(self.rows * self.share))
            num_negative = min(negative.numel(), self.rows - num_positive)
            for rows, count, masks_here in (
                (positive, num_positive, masks[0]),
                (negative, num_negative, masks[1]),
            ):
                order = torch.randperm(rows.numel(), device=rows.device)[:count]
                mask = torch.zeros_like(matches, dtype=torch.uint8)
                mask[rows[order]] = 1
                masks_here.append(mask)
        return masks


class FasterRCNN(Detector):
    """Proposals sampled for binary cross entropy and smooth L1, and their rows of features for
    cross entropy and smooth L1."""

    SIZES = (16.0, 28.0)

    def __init__(self, rows: int = 10_000) -> None:
        super().__init__(len(self.SIZES), len(self.SIZES) * 4, CHANNELS)
        self.scores = nn.Linear(CHANNELS, CLASSES + 1)
        self.deltas = nn.Linear(CHANNELS, (CLASSES + 1) * 4)
        self.of_proposals, self.of_rois = Sampler(10_000, 0.5), Sampler(rows, 0.5)

    def losses(self, images: Tensor, targets: list[Target]) -> Losses:
        objectness, deltas, features = self(images)
        anchors = [anchors_of(self.SIZES, images.device) for _ in targets]
        objectness, deltas = objectness.reshape(-1, 1), deltas.reshape(-1, 4)
        proposals = decoded(deltas.detach(), torch.cat(anchors)).reshape(IMAGES, -1, 4)
        losses = self.rpn(objectness, deltas, anchors, targets)
        return losses | self.rois(proposals, features, targets)

    def rpn(
        self, objectness: Tensor, deltas: Tensor, anchors: list[Tensor], targets: list[Target]
    ) -> Losses:
        all_labels, wanted = [], []
        for anchors_here, target in zip(anchors, targets, strict=True):
            boxes = target["boxes"]
            if boxes.numel() == 0:
                matched_boxes = torch.zeros_like(anchors_here)
                labels = torch.zeros((anchors_here.shape[0],), device=boxes.device)
            else:
                matches = matches_of(iou(boxes, anchors_here), 0.3, 0.7, keep_best=True)
                matched_boxes = boxes[matches.clamp(min=0)]
                labels = (matches >= 0).to(dtype=torch.float32)
                labels[matches == BELOW] = 0.0
                labels[matches == BETWEEN] = -1.0
            all_labels.append(labels)
            wanted.append(encoded(matched_boxes, anchors_here))
        positive, negative = self.of_proposals(all_labels)
        positive = torch.where(torch.cat(positive, dim=0))[0]
        negative = torch.where(torch.cat(negative, dim=0))[0]
        sampled = torch.cat([positive, negative], dim=0)
        labels, targets_of_boxes = torch.cat(all_labels, dim=0), torch.cat(wanted, dim=0)
        of_boxes = F.smooth_l1_loss(
            deltas[positive], targets_of_boxes[positive], beta=1 / 9, reduction="sum"
        ) / (sampled.numel())
        of_objects = F.binary_cross_entropy_with_logits(
            objectness.flatten()[sampled], labels[sampled]
        )
        return {"objectness": of_objects, "proposals": of_boxes}

    def rois(self, proposals: Tensor, features: Tensor, targets: list[Target]) -> Losses:
        rows = [
            torch.cat((proposals_here, target["boxes"]))
            for proposals_here, target in zip(proposals, targets, strict=True)
        ]
        matched, all_labels = [], []
        for rows_here, target in zip(rows, targets, strict=True):
            if target["boxes"].numel() == 0:
                zeros = torch.zeros(len(rows_here), dtype=torch.int64, device=rows_here.device)
                matched.append(zeros)
                all_labels.append(zeros.clone())
                continue
            matches = matches_of(iou(target["boxes"], rows_here), 0.5, 0.5, keep_best=False)
            clamped = matches.clamp(min=0)
            labels = target["labels"][clamped].to(dtype=torch.int64)
            labels[matches == BELOW] = 0
            labels[matches == BETWEEN] = -1
            matched.append(clamped)
            all_labels.append(labels)
        positive, negative = self.of_rois(all_labels)
        labels, wanted, pooled = [], [], []
        for index, target in enumerate(targets):
            sampled = torch.where(positive[index] | negative[index])[0]
            rows_here = rows[index][sampled]
            labels.append(all_labels[index][sampled])
            boxes = target["boxes"]
            if boxes.numel() == 0:
                boxes = torch.zeros((1, 4), dtype=boxes.dtype, device=boxes.device)
            wanted.append(encoded(boxes[matched[index][sampled]], rows_here, (10, 10, 5, 5)))
            centers = ((rows_here[:, :2] + rows_here[:, 2:]) / 2 / STRIDE).long().clamp(0, GRID - 1)
            pooled.append(features[index][centers[:, 1] * GRID + centers[:, 0]])
        all_pooled, labels_of_all = torch.cat(pooled), torch.cat(labels, dim=0)
        scores, deltas = self.scores(all_pooled), self.deltas(all_pooled)
        of_classes = F.cross_entropy(scores, labels_of_all)
        foreground = torch.where(labels_of_all > 0)[0]
        deltas = deltas.reshape(scores.shape[0], deltas.size(-1) // 4, 4)
        of_boxes = F.smooth_l1_loss(
            deltas[foreground, labels_of_all[foreground]],
            torch.cat(wanted, dim=0)[foreground],
            beta=1 / 9,
            reduction="sum",
        )
        return {"classes": of_classes, "boxes": of_boxes / labels_of_all.numel()}


DETECTORS: dict[str, Callable[[], Detector]] = {
    "RetinaNet": RetinaNet,
    "FCOS": FCOS,
    "Faster R-CNN": FasterRCNN,
}


def batch(counts: Sequence[int]) -> tuple[Tensor, list[Target]]:
    """Images, and for each of them so many boxes with labels."""
    targets = []
    for count in counts:
        corner = torch.rand(count, 2) * (GRID - 2) * STRIDE
        sides = torch.rand(count, 2) * 24 + 12
        targets.append(
            {
                "boxes": torch.cat((corner, corner + sides), dim=1),
                "labels": torch.randint(1, CLASSES, (count,)),
            }
        )
    return torch.randn(len(counts), 3, GRID, GRID), targets
