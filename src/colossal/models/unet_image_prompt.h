// An IP-adapter within a UNet (arXiv:2308.06721): the embedding of a picture becomes a few tokens, and each attention
// to the text also attends to them, with keys and values of its own. Both results are added before the projection from
// the heads.
//
//   const ModelShape whole = models::with_image_prompt(unet, {.features = 1024, .tokens = 4, .scale = 0.8});
//   for (const nn::ExternalName& name : models::image_prompt_names(whole)) ...    // "ip_adapter.1.to_k_ip.weight"
//
// Parameters are named "image.<layer>" before the blocks and "blocks.<i>.image.kv" inside of them. Folders of the UNet
// have none of them, so they count as added (nn::Parameter::is_added). The model reads the field `image`
// (models/denoiser.h) in addition. A ControlNet beside it reads the text alone.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/models/families/unet.h"
#include "colossal/models/model.h"
#include "colossal/models/shape.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/external_name.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/parameter.h"
#include "colossal/nn/vector.h"
#include "colossal/tensor/batch.h"

namespace colossal::models {

/// Returns the shape with an IP-adapter. Errors ("model"): another denoiser than a UNet; one with its text encoder
/// within it; no features or tokens.
ModelShape with_image_prompt(ModelShape denoiser, const OwnImagePrompt& prompt);

/// Returns the shape without its IP-adapter. Other shapes stay as they are.
ModelShape without_image_prompt(ModelShape shape);

/// Returns true if the shape has an IP-adapter.
bool has_image_prompt(const ModelShape& shape);

/// Returns true for the name of a parameter of an IP-adapter, within its model.
bool is_of_image_prompt(const std::string& name);

/// Returns the parameter of the UNet whose values that parameter of the IP-adapter starts from: keys and values of the
/// text. None = it has values of its own: the projection of embeddings.
std::optional<std::string> image_prompt_origin(const std::string& name);

/// Marks the parameters of an IP-adapter as added. Models call it once their layers are made.
void mark_image_prompt(nn::Parameters& parameters);

/// Returns the place of each parameter of the IP-adapter in its file. The file numbers attentions as diffusers lists
/// them: on the way down, on the way up and then in the middle, each the one among pixels before the one to the text.
/// `shape` has an IP-adapter.
std::vector<nn::ExternalName> image_prompt_names(const ModelShape& shape);

/// Returns the index of the state that has the tokens of the picture, after the states of the UNet.
int unet_image_state(const UnetSizes& sizes);

/// What makes tokens of the embedding of a picture: a linear layer to all of them, and a norm of each.
class UnetImagePrompt {
 public:
  /// Makes the parameters image.proj.weight [tokens * text, features], image.proj.bias and image.norm. `shape` has an
  /// IP-adapter.
  UnetImagePrompt(const ModelShape& shape, nn::Layers& make);
  /// Returns its state, [B, tokens, text].
  State state() const;
  /// Returns the tokens of the rows of a batch; with ranks that split features, this rank's part of these.
  /// Errors ("data"): the field `image` is not [B, features].
  at::Tensor forward(const tensor::Batch& batch, const nn::ForwardContext& step) const;

 private:
  OwnImagePrompt own_;
  int64_t text_;
  nn::FieldPart part_;
  at::ScalarType dtype_;
  std::unique_ptr<nn::Vector> weight_, bias_;
  std::unique_ptr<nn::Norm> norm_;
};

}  // namespace colossal::models
