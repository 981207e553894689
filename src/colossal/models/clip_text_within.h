// A denoiser that has its text encoder within it, so that gradients reach the encoder: its first blocks are those of
// the encoder, and the state `text` passes through them.
//
//   const ModelShape shape = models::with_text_encoder(unet, clip);       // reads token ids, not states of captions
//   for (const nn::ExternalName& name : models::built_in().at("unet")->diffusers.names(shape)) ...
//   // "text_encoder.text_model.encoder.layers.0.self_attn.q_proj.weight", ..., "conv_in.weight", ...
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/models/model.h"
#include "colossal/models/shape.h"
#include "colossal/nn/external_name.h"
#include "colossal/nn/layers.h"

namespace colossal::models {

/// What the names of the text encoder have before those of its own folder: kTextEncoderPart and a dot.
inline constexpr char kOfTextEncoder[] = "text_encoder.";

/// Returns the shape of the denoiser with the encoder. In place of the field `text` it reads `ids` [B, tokens], int64.
/// Errors ("model"): a denoiser that reads no captions, or states of another width; another encoder than a clip_text
///                   without a projection.
ModelShape with_text_encoder(ModelShape denoiser, const ModelShape& text);

/// Returns the shape without the encoder. Other shapes stay as they are.
ModelShape without_text_encoder(ModelShape shape);

/// Returns the number of the first blocks of the model, those of its text encoder.
int64_t text_encoder_blocks(const ModelShape& shape);

/// Adds the blocks of the encoder `text`, the first ones of the model, which pass on the state of that index. Returns
/// what embeds the field `ids`. The parameters of the model's own embedding must be declared before.
Embed::OfOne add_text_encoder(const ModelShape& text, int state, Model& model, nn::Layers& layers);

/// Returns the names of the parameters in the folders of a pipeline: `of_denoiser`, those of without_text_encoder(),
/// and those of the encoder after kOfTextEncoder. `shape` has an encoder.
std::vector<nn::ExternalName> names_with_text_encoder(const ModelShape& shape,
                                                      std::vector<nn::ExternalName> of_denoiser);

}  // namespace colossal::models
