// The codes of a quantized model.from, on which a run trains adapters: a folder of GPTQ, AWQ or bitsandbytes (NF4), or
// a GGUF file.
//
//   if (run::keeps_codes(config)) run::read_base_codes(config.model.from, shape, parameters, codes);
//   memory::ChunkStore store(parameters, ...);        // leaves the matrices with codes out
#pragma once
#include <string>

#include "colossal/models/shape.h"
#include "colossal/nn/frozen_codes.h"
#include "colossal/nn/parameter.h"
#include "colossal/run/config.h"

namespace colossal::run {

/// Returns true if frozen matrices of the main model of a run may stay codes: model.from is a quantized folder or GGUF
/// file. A run folder has none, because its weights are merged. With another adapter.base than "model" the run makes
/// codes of its own of the numbers. Errors: those of has_numbers().
bool keeps_codes(const Config& config);

/// Checks the layout of a run whose main model has a quantized model.from. Errors ("adapter"): a layout that gathers
/// blocks of weights (2D, 2.5D, 3D, Megatron's sequence form), or fp8, which would quantize the codes again.
void check_codes(const Config& config);

/// Gives `codes` the frozen matrices of `parameters` that `from` has as codes, each this rank's part. `parameters` are
/// those of the main model, without memory; `codes` wraps its products. Other matrices keep their values: those whose
/// codes ops::GroupCodes cannot represent, or whose groups the layout cuts. Parameters on meta get codes of the form
/// that the headers promise. No communication.
/// Cost:   reads these matrices once. Of each, codes of a byte per element are in memory meanwhile.
/// Errors: those of checkpoint::import_weights().
void read_base_codes(const std::string& from, const models::ModelShape& shape, nn::Parameters& parameters,
                     nn::FrozenCodes& codes);

}  // namespace colossal::run
