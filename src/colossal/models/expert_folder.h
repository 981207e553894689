// Mixtures of experts in Hugging Face folders of Mixtral (arXiv:2401.04088) and Qwen3-MoE (arXiv:2505.09388): the keys
// of config.json, and the names of the router and the experts.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "colossal/models/expert_keys.h"
#include "colossal/models/shape.h"
#include "colossal/nn/external_name.h"

namespace colossal::models {

class FolderConfig;

/// Return rows of FolderNames::in_block. Folders have a tensor for each expert and matrix; those that transformers 5
/// writes with save_original_format=False have one tensor for all experts. Both are read, and the first is written.
std::vector<nn::ExternalName> mixtral_names();
std::vector<nn::ExternalName> qwen_moe_names();

/// Read the keys of config.json. Training alone concerns router_aux_loss_coef and output_router_logits: transformers'
/// loss mixes the layers and is not ours, so they are not read.
/// Errors ("model"): num_experts and num_local_experts, two names of one key, that differ; a Mixtral without experts;
///                   router_jitter_noise other than 0; decoder_sparse_step below 1.
ExpertKeys read_mixtral_experts(const FolderConfig& config);
/// The layer of index i of a Qwen3-MoE has experts if decoder_sparse_step divides i + 1 and mlp_only_layers lacks i. If
/// no layer has any, the result is that of a dense model.
ExpertKeys read_qwen_moe_experts(const FolderConfig& config, int64_t layers);

/// Write the keys, and intermediate_size of a Mixtral.
void write_mixtral_experts(const ModelShape& shape, const ExpertKeys& keys, nlohmann::json& config);
void write_qwen_moe_experts(const ModelShape& shape, const ExpertKeys& keys, nlohmann::json& config);

/// Check that a folder can describe the experts, before an export. Keys that concern training alone are not checked.
/// Errors ("experts"): the first key that the folder's format lacks, with its value.
void require_mixtral_form(const ExpertKeys& keys);
void require_qwen_moe_form(const ExpertKeys& keys);
/// Refuses every key of experts for folders of `model_type`, which have no experts.
void require_dense_form(const ExpertKeys& keys, const std::string& model_type);

}  // namespace colossal::models
