// Names and patterns of modules of a Hugging Face folder, as the table [adapter] has them.
//
//   names_module("q_proj", "model.layers.0.self_attn.q_proj");     // true: the end after a dot
//   names_module("*.mlp.*", "model.layers.0.mlp.up_proj");         // true: the whole name
#pragma once
#include <string>

namespace colossal::run {

/// Returns true if `pattern` is the module's name, or the end of its name after a dot (peft's rule), or has a `*` and
/// matches its whole name; each `*` stands for any characters.
bool names_module(const std::string& pattern, const std::string& module);

}  // namespace colossal::run
