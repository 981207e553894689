// Latent attention and mixtures of DeepSeek-V2 and V3 (arXiv:2405.04434, arXiv:2412.19437) in GGUF files of
// architecture deepseek2. A folder has one matrix, kv_b_proj, that makes keys and values of all heads from a latent. A
// file has a tensor for keys and one for values, and older files the folder's matrix.
//
// See: conversion/deepseek.py and src/models/deepseek2.cpp of https://github.com/ggml-org/llama.cpp.
#pragma once
#include <ATen/core/Tensor.h>

#include <nlohmann/json_fwd.hpp>

#include "colossal/checkpoint/gguf/family.h"
#include "colossal/formats/gguf_file.h"

namespace colossal::checkpoint {

/// Returns true for the one architecture with latent attention.
bool has_latent(const GgufFamily& family);

/// Returns the heads of a file with latent attention. Older files have the features of a head as key_length and
/// value_length; newer ones have these of the latent there, and those of a head as key_length_mla and value_length_mla.
/// Errors: throws Error("gguf", ...) for sizes that are not above 0.
GgufHeads latent_heads(const formats::GgufFile& file);
GgufHeads latent_heads(const formats::GgufValues& values);

/// Returns the keys of all heads, [heads, rank, nope], or the values, [heads, value, rank], of kv_b_proj
/// [heads * (nope + value), rank]. Errors: throws Error("gguf", ...) if the rows do not fit the heads.
at::Tensor latent_keys(const at::Tensor& kv_b, const GgufHeads& heads);
at::Tensor latent_values(const at::Tensor& kv_b, const GgufHeads& heads);
/// Does the reverse. Errors: as above, for either shape.
at::Tensor latent_joined(const at::Tensor& keys, const at::Tensor& values, const GgufHeads& heads);

/// Adds the values of `config` that one key of a file does not determine alone: model_type, the sizes of heads, and the
/// choice of experts. Errors: throws Error("gguf", ...) for a gating function other than softmax and sigmoid.
void read_latent(const formats::GgufFile& file, nlohmann::json& config);
/// Does the reverse. Errors: throws Error("gguf", ...) for values that llama.cpp does not compute: groups with softmax
/// scores, whose score would be the sum of two experts, and groups of one expert.
void write_latent(const nlohmann::json& config, formats::GgufValues& values);

}  // namespace colossal::checkpoint
