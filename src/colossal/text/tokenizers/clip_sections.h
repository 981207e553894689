// The tokenizer of CLIP, which reads the captions of Stable Diffusion, as transformers makes it from a vocabulary and
// its merges.
//
//   json tokenizer = {{"model", {{"vocab", vocabulary}, {"merges", merges}}}, {"added_tokens", json::array()}};
//   set_clip_sections(tokenizer, config, "folder/vocab.json");
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace colossal::text {

/// Names of the tokens around a caption, unless tokenizer_config.json names others.
inline constexpr char kClipBegin[] = "<|startoftext|>", kClipEnd[] = "<|endoftext|>";

/// Returns true if tokenizer_config.json names CLIP's class of tokenizers.
bool is_clip(const nlohmann::json& config);

/// Sets all sections of a tokenizer.json but its vocabulary and merges, and adds the special tokens that `config`
/// names: lower case, white space that only separates words, GPT-2's alphabet of bytes, `</w>` at the end of a word,
/// the begin token before a text and the end token after it. A token that is special is found within texts, too: with
/// the pad token "!" of Stable Diffusion 2, each "!" of a caption is a pad.
/// See: models/clip/tokenization_clip.py of transformers 5.23.
/// Errors: throws Error("tokenizer", ...) for a special token that the vocabulary does not have.
void set_clip_sections(nlohmann::json& tokenizer, const nlohmann::json& config, const std::string& file);

}  // namespace colossal::text
