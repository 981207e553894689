// Names and patterns of modules of a Hugging Face folder, as the table [adapter] has them.
//
//   names_module("q_proj", "model.layers.0.self_attn.q_proj");     // true: the end after a dot
//   names_module("*.mlp.*", "model.layers.0.mlp.up_proj");         // true: the whole name
//   names_module("experts", "model.layers.0.mlp.experts.down_proj");   // true: the matrices of experts
#pragma once
#include <string>

namespace colossal::run {

/// Returns true if `pattern` is the module's name, or the end of its name after a dot (peft's rule), or has a `*` and
/// matches its whole name; each `*` stands for any characters.
///
/// The matrices of all experts of a layer are one module, whose name has "experts" before its last part. A pattern
/// names it if it has the word "experts" and names the module or its name without the last part. So "down_proj" names
/// no expert, and "experts" names all matrices of experts.
bool names_module(const std::string& pattern, const std::string& module);

}  // namespace colossal::run
