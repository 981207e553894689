// A denoiser that has its text encoder within it, so that gradients reach the encoder: its first blocks are those of
// the encoder, and the state `text` passes through them. SDXL may have both of its encoders within it.
//
//   const ModelShape shape = models::with_text_encoder(unet, clip);       // reads token ids, not states of captions
//   for (const nn::ExternalName& name : models::built_in().at("unet")->diffusers.names(shape)) ...
//   // "text_encoder.text_model.encoder.layers.0.self_attn.q_proj.weight", ..., "conv_in.weight", ...
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "colossal/models/model.h"
#include "colossal/models/shape.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/external_name.h"
#include "colossal/nn/layers.h"

namespace colossal::models {

/// What the names of the text encoder have before those of its own folder, the part and a dot; and of a second one.
inline constexpr char kOfTextEncoder[] = "text_encoder.", kOfSecondTextEncoder[] = "text_encoder_2.";

/// Returns the number of the text encoder, from 0, that has a tensor or module of that name; -1 = the denoiser has it.
int64_t text_encoder_of_name(const std::string& name);
/// Returns what the names of that text encoder begin with.
std::string names_of_text_encoder(int64_t encoder);

/// Returns the shape of the denoiser with the encoder. In place of the field `text` it reads `ids` [B, tokens], int64.
/// Errors ("model"): a denoiser that reads no captions, or states of another width; another encoder than a clip_text
///                   without a projection.
ModelShape with_text_encoder(ModelShape denoiser, const ModelShape& text);

/// Returns the shape of a denoiser of SDXL's form with both encoders. It reads the fields `ids` and `ids_2` in place of
/// `text` and `pooled`. The last block of the first encoder is left out, because its states are not read.
/// `zeros_for_empty`: rows whose caption is empty read zeros. Layouts that split hidden features are refused.
/// Errors ("model"): a denoiser that reads no two encoders, or other widths; other encoders than a clip_text without a
///                   projection and one with it.
ModelShape with_text_encoders(ModelShape denoiser, ModelShape first, const ModelShape& second, bool zeros_for_empty);

/// Returns the shape without its encoders. Other shapes stay as they are.
ModelShape without_text_encoder(ModelShape shape);

/// Returns the number of the first blocks of the model, those of its text encoders.
int64_t text_encoder_blocks(const ModelShape& shape);

/// Adds the blocks of the encoder `text`, the first ones of the model, which pass on the state of that index. Returns
/// what embeds the field `ids`. The parameters of the model's own embedding must be declared before.
Embed::OfOne add_text_encoder(const ModelShape& text, int state, Model& model, nn::Layers& layers);

/// What embeds the fields of two encoders.
struct EmbeddedTexts {
  Embed::OfOne first, second;
};
/// The states of a denoiser that two encoders pass on or change: that of the first, which becomes the joined one, that
/// of the second, and the vector to which that of the pooled text is added.
struct TextStates {
  int text = 0, second = 0, condition = 0;
};
/// Returns what is added to TextStates::condition for a pooled text [B, features].
using PooledText = std::function<at::Tensor(const at::Tensor& pooled, const nn::ForwardContext& step)>;

/// Adds the blocks of both encoders, the first ones of the model. The last of them joins the states and adds the pooled
/// text. `of_pooled` gets the number of that block, and makes its layers. Otherwise as add_text_encoder().
/// Errors ("parallel"): a layout that splits hidden features.
EmbeddedTexts add_text_encoders(const OwnTextEncoder& texts, const TextStates& states, Model& model, nn::Layers& layers,
                                const std::function<PooledText(int64_t block)>& of_pooled);

/// Returns the names of the parameters in the folders of a pipeline: `of_denoiser`, those of without_text_encoder(),
/// and those of the encoders after names_of_text_encoder(). `shape` has an encoder. Those of UnetTextCondition in
/// `of_denoiser` begin with "more.".
std::vector<nn::ExternalName> names_with_text_encoder(const ModelShape& shape,
                                                      std::vector<nn::ExternalName> of_denoiser);

}  // namespace colossal::models
