#include "colossal/models/unet_transformer.h"

#include <ATen/ATen.h>

#include "colossal/models/denoiser.h"
#include "colossal/models/initial_deviations.h"
#include "colossal/models/unet_image_prompt.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/convolution.h"
#include "colossal/nn/features.h"
#include "colossal/nn/forward_context.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/group_norm.h"

namespace colossal::models {

namespace unet {

constexpr double kBeforeAttention = 1e-6;  // epsilon of the GroupNorm of a transformer
constexpr double kInTransformer = 1e-5;    // epsilon of its LayerNorms

}  // namespace unet

UnetTransformer::UnetTransformer(const ModelShape& s, const UnetPart& part, const std::string& name, nn::Layers& make)
    : part_(part), is_linear_(s.own.as<UnetSizes>().linear_projection) {
  const auto own = s.own.as<UnetSizes>();
  const int64_t size = part.out, inside = 4 * size;
  const std::vector<int64_t> taps = is_linear_ ? std::vector<int64_t>() : std::vector<int64_t>{1, 1};
  if (part.begins()) {
    norm_ = make.group_norm(name + ".norm", size, {own.groups, unet::kBeforeAttention}, nn::Place::Outside);
    proj_in_ = make.dense(name + ".proj_in", size, size, {.deviation = of_inputs(size), .taps = taps});
  }
  make_attention(own, name, make);
  if (has_image_prompt(s)) make_image_attention(s, name, make);
  mlp_norm_ = make.layer_norm(name + ".mlp.norm", size, {.epsilon = unet::kInTransformer});
  gate_up_ = make.expand(name + ".mlp.gate_up", size, 2 * inside,
                         {.deviation = of_inputs(size), .segments = {{inside}, {inside}}});
  down_ = make.contract(name + ".mlp.down", inside, size, {.deviation = of_inputs(inside)});
  if (part.ends()) proj_out_ = make.dense(name + ".proj_out", size, size, {.deviation = 0, .taps = taps});
}

void UnetTransformer::make_attention(const UnetSizes& own, const std::string& name, nn::Layers& make) {
  const int64_t size = part_.out, heads = own.attention_heads[part_.level];
  const nn::AttentionShape shape{.hidden = size, .heads = heads, .kv_heads = heads, .head_dim = size / heads};
  nn::AttentionShape to_text = shape;
  to_text.source_hidden = own.text;
  const nn::LinearOptions of_size{.bias = false, .deviation = of_inputs(size)},
      of_text{.bias = false, .deviation = of_inputs(own.text)}, out{.deviation = of_inputs(size)};
  self_.norm = make.layer_norm(name + ".attention.norm", size, {.epsilon = unet::kInTransformer});
  qkv_ = make.heads(name + ".attention.qkv", shape, of_size);
  self_.attention = make.attention(name + ".attention", shape, {.causal = false});
  self_.out = make.from_heads(name + ".attention.out", shape, out);
  cross_.norm = make.layer_norm(name + ".cross.norm", size, {.epsilon = unet::kInTransformer});
  to_text_ = make.cross_heads(name + ".cross", to_text, of_size, of_text);
  cross_.attention = make.attention(name + ".cross", to_text, {.causal = false});
  cross_.out = make.from_heads(name + ".cross.out", to_text, out);
}

void UnetTransformer::make_image_attention(const ModelShape& s, const std::string& name, nn::Layers& make) {
  const auto own = s.own.as<UnetSizes>();
  const int64_t size = part_.out;
  image_state_ = unet_image_state(own);
  image_scale_ = s.part<OwnImagePrompt>().scale;
  head_dim_ = size / own.attention_heads[part_.level];
  const tensor::Segment heads{size, head_dim_};  // as those of to_text_
  to_image_ = make.expand(name + ".image.kv", own.text, 2 * size,
                          {.bias = false, .deviation = of_inputs(own.text), .segments = {heads, heads}});
}

std::vector<int> UnetTransformer::reads() const {
  std::vector<int> states;
  if (part_.begins() || part_.ends()) states.push_back(part_.reads);
  if (!part_.begins()) states.push_back(part_.inside);
  states.push_back(kUnetText);
  if (to_image_) states.push_back(image_state_);
  return states;
}

at::Tensor UnetTransformer::forward(const States& states, const nn::ForwardContext& step) const {
  at::Tensor h =
      part_.begins() ? projected(*proj_in_, norm_->forward(states[part_.reads]), step) : states[part_.inside];
  h = h + self_.after(qkv_->forward(self_.norm->forward(h), step), step);
  const nn::Heads to_text = to_text_->forward(cross_.norm->forward(h), states[kUnetText], step);
  nn::Inside found = cross_.attention->forward(to_text, step);
  if (to_image_) found.tensor = found.tensor.add(of_image(to_text, states), image_scale_);
  h = h + cross_.out->forward(found, step);
  h = h + down_->forward(gate_up_->forward(mlp_norm_->forward(h)).map(ops::activation("gelu").gated, step));
  return part_.ends() ? states[part_.reads] + projected(*proj_out_, h, step) : h;
}

at::Tensor UnetTransformer::of_image(nn::Heads heads, const States& states) const {
  const auto parts = to_image_->forward(states[image_state_]).tensor.chunk(2, -1);
  heads.k = parts[0].unflatten(-1, {-1, head_dim_});
  heads.v = parts[1].unflatten(-1, {-1, head_dim_});
  return nn::attention_to_source(heads, {}).tensor;
}

at::Tensor UnetTransformer::Branch::after(const nn::Heads& heads, const nn::ForwardContext& step) const {
  return out->forward(attention->forward(heads, step), step);
}

at::Tensor UnetTransformer::projected(nn::Dense& layer, const at::Tensor& x, const nn::ForwardContext& step) const {
  if (is_linear_) return layer.forward(x);
  return layer.forward(x, {unet_level_size(picture_size(*step.batch), part_.level), ops::Window::same(1)});
}

}  // namespace colossal::models
