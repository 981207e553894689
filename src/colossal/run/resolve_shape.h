// The shape of the model that [model] describes, whatever model.from is: a Hugging Face folder, a run folder or a GGUF
// file.
//
//   run::check_training(config, program);                           // a run may start from it
//   const models::ModelShape shape = run::resolve_shape(config.model, program, vocabulary);
#pragma once
#include <cstdint>
#include <string>

#include "colossal/models/config.h"
#include "colossal/models/shape.h"
#include "colossal/run/config.h"
#include "colossal/run/program.h"

namespace colossal::run {

/// Returns models::Registry::resolve(), where model.from may also be a run folder or a GGUF file. A run folder stands
/// for its export. No weight is read, and a run needs no checkpoint. Errors: those of that function, of configs and of
/// checkpoint::read_config(); ("model") there is nothing at the path; ("run") a path of another kind.
models::ModelShape resolve_shape(const models::ModelConfig& config, const Program& program, int64_t vocabulary = 0);

/// Returns true if the weights of a Hugging Face folder or GGUF file are numbers, not codes of quantized values. A run
/// has numbers. Errors: those of reading config.json or the file's header.
bool has_numbers(const std::string& path);

/// Checks that training can start from model.from and can follow its config.json (models::Registry::check_training()).
/// Errors ("model"): its weights are quantized, and the config has no adapters of the table [adapter] to train on them;
/// the errors of that function. Errors of resolve_shape(), check_codes() and read_tables().
void check_training(const Config& config, const Program& program);

}  // namespace colossal::run
