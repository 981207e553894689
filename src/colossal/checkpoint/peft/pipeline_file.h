// Files of adapters for pipelines of pictures, in the forms that programs write. The file of diffusers is
// pytorch_lora_weights.safetensors, with a prefix for the part of the pipeline and the alphas in its header:
//
//   unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.lora_A.weight             [r, in]
//   unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.lora_B.weight             [out, r]
//   unet.down_blocks.0.resnets.0.conv1.lora_A.weight                                          [r, in, 3, 3]
//
// Kohya's sd-scripts write underscores for dots, and an alpha for each layer:
//
//   lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q.lora_down.weight     [r, in]
//   lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q.lora_up.weight       [out, r]
//   lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q.alpha                []
//
// For SDXL, Stable Diffusion 3 and FLUX they keep the names of the makers' files, which have several matrices in one:
//
//   lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight                                   [r, in]
//
//   const checkpoint::PeftFolder adapters = checkpoint::read_pipeline_file("loras/moon.safetensors");
//   for (const auto& [name, layer] : adapters.layers()) ...      // names with the prefix, as the file has them
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "colossal/checkpoint/peft/config.h"
#include "colossal/checkpoint/peft/folder.h"

namespace colossal::checkpoint {

/// Name of the file in a folder that diffusers writes.
inline constexpr char kPipelineFile[] = "pytorch_lora_weights.safetensors";
/// Prefixes of kohya's names for the layers of the model that draws and of the text encoder, or of two.
inline constexpr char kKohyaModel[] = "lora_unet_", kKohyaText[] = "lora_te_", kKohyaFirstText[] = "lora_te1_",
                      kKohyaSecondText[] = "lora_te2_";

/// Returns the file of adapters at `path`, which is a .safetensors file, or a folder with kPipelineFile or with one
/// .safetensors file; "" = there is none.
std::string find_pipeline_file(const std::string& path);

/// Reads a file of either form, or of older versions of diffusers (`.lora.down.weight`, `processor.to_q_lora`). An
/// alpha is that of the layer, else that of the header, else the rank. The tensors are views of the file, except B of a
/// convolution, [out, r, 1, 1] in the file, which becomes [out, r].
/// Errors ("adapter"): other kinds of adapters (LoHa, LoKr, dora_scale), by name; tensors of none of the forms, all
/// listed; A or B alone, or of ranks that do not fit. Errors of PeftConfig::of() for the header, and of
/// SafetensorsReader.
PeftFolder read_pipeline_file(const std::string& file);

/// The form of a file that is written.
enum class PipelineForm { Peft, Kohya };

/// Returns the form of that name, "peft" or "kohya".
PipelineForm pipeline_form(std::string_view name);

/// The adapters of a part of a pipeline.
struct PipelineLayers {
  PeftConfig config{};  ///< has their ranks and alphas
  /// By the names of modules, without the part. A layer of a convolution has A [r, in, rows, columns] and B [out, r]
  std::map<std::string, PeftLayer> layers{};
};

/// Writes adapters of parts of a pipeline ("unet", "text_encoder", "text_encoder_2") into `folder`, which must exist,
/// as kPipelineFile.
/// Errors ("file"): it cannot be written. ("export"): magnitudes in kohya's form, which has them otherwise.
void write_pipeline_file(const std::string& folder, const std::map<std::string, PipelineLayers>& parts,
                         PipelineForm form);

}  // namespace colossal::checkpoint
