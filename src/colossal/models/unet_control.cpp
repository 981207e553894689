#include "colossal/models/unet_control.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/models/conditions.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/initial_deviations.h"
#include "colossal/models/shape_parts.h"
#include "colossal/models/unet_image_prompt.h"
#include "colossal/nn/forward_context.h"

namespace colossal::models {

namespace unet {

constexpr int64_t kControlChannels = 3;  // of a control picture

nn::Pictures pixelwise(const ops::PictureSize& size) { return {size, ops::Window::same(1)}; }

}  // namespace unet

/// The layers before the blocks: convolutions of the noised picture and of the control picture, and the vector of the
/// time.
struct UnetControl::Embedding {
  Embedding(const ModelShape& shape, nn::Layers& make)
      : own(shape.own.as<UnetSizes>()), conditioning(own, "control.", make), part(make.field_part()) {
    const std::vector<int64_t> channels = shape.part<OwnControl>().channels;
    noised = make.picture_embedding("control.pictures", own.channels, own.features.front(), 3,
                                    of_inputs(own.channels * 3 * 3));
    first = make.picture_embedding("control.condition.conv_in", unet::kControlChannels, channels.front(), 3,
                                   of_inputs(unet::kControlChannels * 3 * 3));
    const auto add = [&](const std::string& name, int64_t in, int64_t out) {
      blocks.push_back(make.dense(concat("control.condition.", name), in, out, unet_kernel(3, in)));
    };
    for (size_t i = 0; i + 1 < channels.size(); ++i) {
      add(concat("blocks.", 2 * i), channels[i], channels[i]);
      add(concat("blocks.", 2 * i + 1), channels[i], channels[i + 1]);  // with a stride
    }
    last = make.dense("control.condition.conv_out", channels.back(), own.features.front(), unet_last_kernel(3));
  }

  /// Returns the features of the control pictures, [B, pixels of the noised picture, features].
  at::Tensor of_control(const tensor::Batch& batch, const nn::ForwardContext& step) const {
    const at::Tensor pictures = part(batch.field(kControl), step);
    ops::PictureSize size{pictures.size(2), pictures.size(3)};
    at::Tensor x = first->forward(pictures, ops::Window::same(3));
    for (size_t i = 0; i < blocks.size(); ++i) {
      ops::Window window = ops::Window::same(3);
      const bool halves = i % 2 == 1;
      if (halves) window.stride = 2;
      x = blocks[i]->forward(at::silu(x), {size, window});
      if (halves) size = unet_level_size(size, 1);
    }
    return last->forward(at::silu(x), {size, ops::Window::same(3)});
  }

  UnetSizes own;
  UnetConditioning conditioning;
  nn::FieldPart part;
  std::shared_ptr<nn::PictureEmbedding> noised, first;
  std::vector<std::shared_ptr<nn::Dense>> blocks;
  std::shared_ptr<nn::Dense> last;
};

size_t unet_second_half(const std::vector<UnetPart>& parts) {
  return static_cast<size_t>(
      std::find_if(parts.begin(), parts.end(), [](const UnetPart& part) { return part.joins(); }) - parts.begin());
}

bool makes_skip(const UnetPart& part) { return part.writes >= kUnetSkips && part.writes != part.inside; }

UnetControl::UnetControl(const ModelShape& shape, const std::vector<UnetPart>& parts, std::vector<State>& states,
                         nn::Layers& make)
    : shape_(without_image_prompt(shape)),  // a ControlNet reads the text alone
      parts_(parts),
      second_half_(unet_second_half(parts)),
      embedding_(std::make_shared<const Embedding>(shape, make)) {
  add_states(states);
}

void UnetControl::add_states(std::vector<State>& states) {
  const auto own = shape_.own.as<UnetSizes>();
  const auto of_part = [parts = parts_](int64_t block) {
    const UnetPart& part = parts[std::max<int64_t>(block, 0)];
    return std::pair(part.out, part.level);
  };
  const auto add = [&](State state) {
    states.push_back(std::move(state));
    return static_cast<int>(states.size()) - 1;
  };
  const auto add_residual = [&](const std::string& name, int64_t features, int64_t level) {
    return add(unet_pixels_state("control." + name, [=](int64_t) { return std::pair(features, level); }));
  };
  State condition = states[kUnetCondition];
  condition.name = "control.condition";
  states_.hidden = add(unet_pixels_state("control.hidden", of_part));
  states_.condition = add(std::move(condition));
  states_.skips = add_residual("skip.0", own.features.front(), 0);
  for (size_t i = 0; i < second_half_; ++i)
    if (makes_skip(parts_[i]))
      add_residual(concat("skip.", parts_[i].writes - kUnetSkips), parts_[i].out, parts_[i].level);
  const UnetPart& middle = parts_[second_half_ - 1];
  states_.middle = add_residual("middle", middle.out, middle.level);
  const auto is_in_layers = [](const UnetPart& part) { return part.layers > 1; };
  if (std::any_of(parts_.begin(), parts_.begin() + static_cast<ptrdiff_t>(second_half_), is_in_layers))
    states_.inside = add(unet_pixels_state("control.inside", of_part));
}

void UnetControl::embed(States& states, const tensor::Batch& batch, const nn::ForwardContext& step) const {
  const at::Tensor& pictures = batch.at(kControl);
  require(pictures.dim() == 4 && pictures.size(1) == unet::kControlChannels, "data",
          "control must be [B, 3, height, width]: got ", pictures.sizes());
  const auto halvings = static_cast<int64_t>(shape_.part<OwnControl>().channels.size()) - 1;
  const ops::PictureSize read = unet_level_size({pictures.size(2), pictures.size(3)}, halvings),
                         wanted = picture_size(batch);
  require(read == wanted, "data", "control pictures must have ", int64_t{1} << halvings,
          " pixels a side for each cell of the noised picture, ", wanted.height, " x ", wanted.width, ": got ",
          pictures.size(2), " x ", pictures.size(3));
  states[states_.condition] = embedding_->conditioning.forward(batch, step);
  states[states_.hidden] =
      embedding_->noised->forward(embedding_->part(batch.field("noised"), step), ops::Window::same(3)) +
      embedding_->of_control(batch, step);
}

States UnetControl::seen(const States& states, const UnetPart& part) const {
  States seen(states.size());
  seen[part.reads] = states[states_.hidden];
  if (part.inside >= 0) seen[part.inside] = states[states_.inside];
  seen[kUnetCondition] = states[states_.condition];
  seen[kUnetText] = states[kUnetText];
  return seen;
}

Block UnetControl::in_first_half(size_t index, UnetLayer own, nn::Layers& make) const {
  const UnetPart& part = parts_[index];
  const std::string name = concat("blocks.", index, ".control");
  const UnetLayer twin = make_unet_layer(shape_, part, name, make);
  const auto residual_layer = [&](const char* which, int64_t features) -> std::shared_ptr<nn::Dense> {
    return make.dense(concat(name, ".", which), features, features, unet_last_kernel(1));
  };
  const bool is_last = index + 1 == second_half_;
  const std::shared_ptr<nn::Dense> first = index == 0 ? residual_layer("zero_in", part.in) : nullptr,
                                   own_residual =
                                       makes_skip(part) || is_last ? residual_layer("zero", part.out) : nullptr;
  const Indices at = states_;
  const int to = part.writes == part.inside ? at.inside : at.hidden,
            residual = is_last ? at.middle : at.skips + part.writes - kUnetSkips;
  std::vector<int> reads = own.reads, writes{part.writes, to};
  for (const int state : twin.reads) {
    const int of_control = state == part.reads    ? at.hidden
                           : state == part.inside ? at.inside
                           : state == kUnetText   ? kUnetText
                                                  : at.condition;
    if (std::find(reads.begin(), reads.end(), of_control) == reads.end()) reads.push_back(of_control);
  }
  if (first) writes.push_back(at.skips);
  if (own_residual) writes.push_back(residual);
  const double scale = shape_.part<OwnControl>().scale;
  const auto scaled = [scale](const at::Tensor& x) { return scale == 1 ? x : x * scale; };
  return {reads, writes,
          [control = *this, own, twin, first, own_residual, to, residual, scaled, part](
              States& states, const nn::ForwardContext& step) {
            const States seen = control.seen(states, part);
            const at::Tensor mine = own.forward(states, step), x = twin.forward(seen, step);
            if (first)
              states[control.states_.skips] =
                  scaled(first->forward(seen[part.reads], unet::pixelwise(unet_size_of(step, part.from))));
            if (own_residual)
              states[residual] = scaled(own_residual->forward(x, unet::pixelwise(unet_size_of(step, part.level))));
            states[part.writes] = mine;
            states[to] = x;
          }};
}

Block UnetControl::in_second_half(size_t index, UnetLayer own) const {
  const UnetPart& part = parts_[index];
  std::vector<int> reads = own.reads;
  if (!part.joins())
    return {reads, {part.writes}, [own, to = part.writes](States& states, const nn::ForwardContext& step) {
              states[to] = own.forward(states, step);
            }};
  const int residual = states_.skips + part.skip - kUnetSkips, middle = index == second_half_ ? states_.middle : -1;
  reads.push_back(residual);
  if (middle >= 0) reads.push_back(middle);
  return {reads, {part.writes}, [own, part, residual, middle](States& states, const nn::ForwardContext& step) {
            States seen = states;
            seen[part.skip] = states[part.skip] + states[residual];
            if (middle >= 0) seen[part.reads] = states[part.reads] + states[middle];
            states[part.writes] = own.forward(seen, step);
          }};
}

Block UnetControl::joined(size_t index, UnetLayer own, nn::Layers& make) const {
  return index < second_half_ ? in_first_half(index, std::move(own), make) : in_second_half(index, std::move(own));
}

}  // namespace colossal::models
