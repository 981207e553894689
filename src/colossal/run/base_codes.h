// The codes of a quantized model.from, on which a run trains adapters: a folder of GPTQ, AWQ or bitsandbytes (NF4), or
// a GGUF file.
//
//   if (run::keeps_codes(config)) adapter = run::with_base_codes(adapter, config.model.from, shape);
#pragma once
#include <string>

#include "colossal/models/shape.h"
#include "colossal/nn/adapter.h"
#include "colossal/run/config.h"

namespace colossal::run {

/// Returns true if frozen matrices of the main model of a run may stay codes: model.from is a quantized folder or GGUF
/// file. A run folder has none, because its weights are merged. With another adapter.base than "model" the run makes
/// codes of its own of the numbers. Errors: those of has_numbers().
bool keeps_codes(const Config& config);

/// Checks a run whose main model has a quantized model.from. Errors ("adapter"): precision.mode = "fp8", which would
/// quantize the codes again.
void check_codes(const Config& config);

/// Returns the adapter with a product around the frozen matrices inside of it: they are stored as the codes that
/// `from`, a quantized folder or GGUF file, has of them (nn::make_folder_form). Other matrices keep their values: those
/// whose codes ops::GroupCodes cannot represent, and those that the adapter trains or saves.
/// Cost: the model is declared once, without memory; the headers of the folder and its zero points are read.
/// Errors: those of checkpoint::import_weights().
nn::Adapter with_base_codes(const nn::Adapter& adapter, const std::string& from, const models::ModelShape& shape);

}  // namespace colossal::run
