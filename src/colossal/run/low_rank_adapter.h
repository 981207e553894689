// The table [adapter]: low-rank adapters of the linear layers of a model (LoRA, rsLoRA, DoRA). All other parameters are
// frozen, and checkpoints do not contain them.
//
//   [adapter]
//   kind = "lora"
//   targets = ["q_proj", "v_proj"]        # modules of the Hugging Face folder
//   trained = ["lm_head"]                 # trained whole
//
// The head of a reward model is always trained whole: the keys of its run name it in `trained`. So is a head of values
// (models::with_values), which no folder has and no key names.
#pragma once
#include "colossal/models/shape.h"
#include "colossal/nn/adapter.h"
#include "colossal/run/adapters.h"
#include "colossal/run/low_rank_keys.h"

namespace colossal::run {

/// Returns the adapter of a model of `shape`; it changes nothing for the kind "none". Its product also stores frozen
/// matrices in the format of LowRankKeys::base (run/frozen_base.h). Its matrices are named as
/// nn::with_low_rank() says. A part of a fused weight has the last name of its module in the folder:
/// "blocks.0.attention.qkv.adapter_a.q_proj".
/// Errors ("adapter"): those of AdapterModules; a rank above the smaller side of a matrix; experts with another kind
///        than "lora" or with dropout.
nn::Adapter low_rank_adapter(const LowRankKeys& keys, const models::ModelShape& shape);

/// Returns the keys that train the head of outputs of a model whole, which its base does not have; for other models and
/// the kind "none" the keys as they are.
LowRankKeys with_new_head(LowRankKeys keys, const models::ModelShape& shape);

/// Returns the keys of [adapter] that a config has, with the defaults of the others. They are not completed from
/// adapter.from (with_source()). Errors: those of ConfigDocument::read().
LowRankKeys adapter_keys(const Config& config);

/// Returns the row of the table [adapter]. Errors of its `make` ("adapter"): those of low_rank_adapter(); dropout with
/// training.cuda_graph; a base other than "model" without adapters or in fp8.
AdapterRow low_rank_row();

}  // namespace colossal::run
