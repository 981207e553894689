#include "colossal/models/unet_image_prompt.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/conditions.h"
#include "colossal/models/initial_deviations.h"
#include "colossal/models/registry.h"
#include "colossal/models/unet_parts.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear.h"

namespace colossal::models {
namespace {

constexpr const char *kPromptPrefix = "image.", *kPromptPart = ".image.";

/// Returns the blocks that attend to the text, as diffusers lists them: those of the middle after all others.
std::vector<size_t> listed_attentions(const std::vector<UnetPart>& parts) {
  std::vector<size_t> blocks;
  for (size_t i = 0; i < parts.size(); ++i)
    if (parts[i].kind == UnetPart::Kind::Transformer) blocks.push_back(i);
  std::stable_partition(blocks.begin(), blocks.end(),
                        [&](size_t i) { return !parts[i].folder.starts_with("mid_block."); });
  return blocks;
}

}  // namespace

ModelShape with_image_prompt(ModelShape denoiser, const OwnImagePrompt& prompt) {
  require(denoiser.architecture != nullptr && denoiser.own.holds<UnetSizes>(), "model",
          "an IP-adapter must be for a unet: got ",
          denoiser.architecture ? with_article(denoiser.architecture->name) : "no model");
  require(text_encoder_blocks(denoiser) == 0, "model",
          "an IP-adapter must be for a unet that reads states of captions: got one with its text encoder within it");
  require(prompt.features > 0 && prompt.tokens > 0, "model",
          "an IP-adapter must have positive features and tokens: got ", prompt.features, " and ", prompt.tokens);
  denoiser.set(prompt);
  return denoiser;
}

ModelShape without_image_prompt(ModelShape shape) {
  if (has_image_prompt(shape)) shape.set(OwnImagePrompt{});
  return shape;
}

bool has_image_prompt(const ModelShape& shape) { return shape.part<OwnImagePrompt>().features > 0; }

bool is_of_image_prompt(const std::string& name) {
  return name.starts_with(kPromptPrefix) ||
         (name.starts_with("blocks.") && name.find(kPromptPart) != std::string::npos);
}

std::optional<std::string> image_prompt_origin(const std::string& name) {
  const std::string inside(kPromptPart);
  const size_t at = name.find(inside);
  if (!is_of_image_prompt(name) || at == std::string::npos) return std::nullopt;
  return name.substr(0, at) + ".cross." + name.substr(at + inside.size());
}

void mark_image_prompt(nn::Parameters& parameters) {
  const std::string& model = parameters.options().model;
  std::vector<std::string> names;
  for (const nn::Parameter& p : parameters.declared())
    if (p.model == model && is_of_image_prompt(p.own_name())) names.push_back(p.name);
  for (const std::string& name : names) parameters.at(name).is_added = true;
}

std::vector<nn::ExternalName> image_prompt_names(const ModelShape& shape) {
  std::vector<nn::ExternalName> names;
  for (const char* name : {"proj.weight", "proj.bias", "norm.weight", "norm.bias"})
    names.push_back({concat(kPromptPrefix, name), {concat("image_proj.", name)}});
  const std::vector<size_t> blocks = listed_attentions(unet_parts(shape.own.as<UnetSizes>()));
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string theirs = concat("ip_adapter.", 2 * i + 1);
    names.push_back(
        {concat("blocks.", blocks[i], ".image.kv.weight"), {theirs + ".to_k_ip.weight", theirs + ".to_v_ip.weight"}});
  }
  return names;
}

int unet_image_state(const UnetSizes& sizes) {
  int last = kUnetSkips;
  for (const UnetPart& part : unet_parts(sizes)) last = std::max({last, part.writes, part.inside});
  return last + 1;
}

UnetImagePrompt::UnetImagePrompt(const ModelShape& shape, nn::Layers& make)
    : own_(shape.part<OwnImagePrompt>()),
      text_(shape.own.as<UnetSizes>().text),
      part_(make.field_part()),
      dtype_(make.parameters().options().dtype) {
  const std::vector<tensor::Segment> tokens(static_cast<size_t>(own_.tokens), {text_});
  weight_ = make.vector("image.proj.weight", {own_.tokens * text_, own_.features},
                        {.init = nn::Init::normal(of_inputs(own_.features)), .decay = true, .segments = tokens});
  bias_ = make.vector("image.proj.bias", {own_.tokens * text_}, {.segments = tokens});
  norm_ = make.layer_norm("image.norm", text_, {.epsilon = 1e-5});
}

State UnetImagePrompt::state() const {
  using tensor::Dim;
  return {
      .name = "image",
      .dims = {Dim::Row, Dim::Other, Dim::Feature},
      .sizes = [tokens = own_.tokens, text = text_](const nn::ForwardContext& step, int64_t) -> std::vector<int64_t> {
        return {step.batch->rows(), tokens, text};
      }};
}

at::Tensor UnetImagePrompt::forward(const tensor::Batch& batch, const nn::ForwardContext& step) const {
  const at::Tensor& embeddings = batch.at(kImageEmbedding);
  require(embeddings.dim() == 2 && embeddings.size(1) == own_.features, "data",
          "image must be the embeddings of pictures, [B, ", own_.features, "]: got ", embeddings.sizes());
  const at::Tensor x = part_(batch.field(kImageEmbedding), step).to(dtype_);
  return norm_->forward(nn::linear(x, weight_->value(), bias_->value()).unflatten(1, {own_.tokens, -1}));
}

}  // namespace colossal::models
