// Mixtures of experts in Hugging Face folders of Mixtral (arXiv:2401.04088) and Qwen3-MoE (arXiv:2505.09388): the keys
// of config.json, and the names of the router and the experts.
#pragma once
#include <string>
#include <vector>

#include "colossal/models/expert_keys.h"
#include "colossal/models/shape.h"
#include "colossal/nn/external_name.h"

namespace colossal::models {

class FolderKeys;

/// Return rows of FolderNames::in_block. Folders have a tensor for each expert and matrix; those that transformers 5
/// writes with save_original_format=False have one tensor for all experts. Both are read, and the first is written.
std::vector<nn::ExternalName> mixtral_names();
std::vector<nn::ExternalName> qwen_moe_names();

/// The rows of config.json. Training alone concerns router_aux_loss_coef and output_router_logits: transformers' loss
/// mixes the layers and is not ours, so they are not read.
/// Errors ("model"): num_experts and num_local_experts, two names of one key, that differ; a Mixtral without experts;
///                   decoder_sparse_step below 1. Errors ("experts"): keys that the folder's format lacks (below).
void mixtral_expert_keys(FolderKeys& k, const ModelShape& shape, ExpertKeys& keys);
/// The layer of index i of a Qwen3-MoE has experts if decoder_sparse_step divides i + 1 and mlp_only_layers lacks i. If
/// no layer has any, reading gives a dense model.
void qwen_moe_expert_keys(FolderKeys& k, const ModelShape& shape, ExpertKeys& keys);

/// Check that a folder can describe the experts, before an export. Keys that concern training alone are not checked.
/// Errors ("experts"): the first key that the folder's format lacks, with its value.
void require_mixtral_form(const ExpertKeys& keys);
void require_qwen_moe_form(const ExpertKeys& keys);
/// Refuses every key of experts for folders of `model_type`, which have no experts.
void require_dense_form(const ExpertKeys& keys, const std::string& model_type);

}  // namespace colossal::models
