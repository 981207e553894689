// Exports quantized weights as a folder in the format of GPTQ. transformers, vLLM and others open it, and `colossal
// generate --from` reads the same quantized values back.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/ops/products/group_codes.h"

namespace colossal::checkpoint {

/// Checks that matrices, by names of our parameters, can be written with quantized values of `bits` bits.
/// Errors: throws Error("quantization", ...) for inputs or outputs that do not fill 32-bit words.
void check_gptq(const nn::Parameters& parameters, const std::vector<std::string>& matrices, int64_t bits,
                const ExternalNames& external);

/// Writes config.json (`config` with quantization_config) and model.safetensors. For a quantized weight "x.weight" the
/// folder holds x.qweight, x.qzeros, x.scales and x.g_idx. All other tensors are rounded to `dtype`.
///
/// `codes` maps names of our parameters ("blocks.0.attention.qkv.weight") to quantized values, and "<stack>.<index>" to
/// those of an expert's matrix. All must have the same bits and group, and either all or none have minima. If a tensor
/// of the folder holds rows of several parameters, all or none of them must be quantized. Other readers expect that all
/// linear layers of all blocks are quantized, and nothing else except the head.
///
/// Numerics: quantized values are written unchanged. Scales are rounded to binary16. For scales of ops::round_to_codes
///           this is exact from 2^-14 on, and at most 2^-25 off below. Minima must be whole multiples of scales:
///           -zero * scale with a zero point of 0 to 15 (RoundingOptions::whole_zeros).
/// Layout:   without minima, checkpoint_format is "gptq" and sym is true, which every reader supports; with minima it
///           is "gptq_v2".
/// Errors:   throws Error("quantization", ...) for quantized values that differ in form, have no parameter or another
///           shape, or belong to a tensor that is no ".weight". Also for inputs or outputs that do not fill words (8
///           values of 4 bits, 4 of 8), see check_gptq(); minima that are no such multiples; parameters that are not
///           whole on this rank; a folder that holds model.safetensors.index.json; failed writes.
/// Cost:     one tensor of the folder in memory at a time, in addition to the arguments.
void export_gptq(const std::string& folder, const nn::Parameters& parameters,
                 const std::map<std::string, ops::GroupCodes>& codes, const ExternalNames& external,
                 const nlohmann::json& config, at::ScalarType dtype = at::kHalf);

}  // namespace colossal::checkpoint
