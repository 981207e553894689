#include "colossal/run/low_rank_adapter.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "colossal/base/article.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/decoder.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/low_rank.h"
#include "colossal/run/adapter_kinds.h"
#include "colossal/run/adapter_modules.h"
#include "colossal/run/adapter_source.h"
#include "colossal/run/frozen_base.h"
#include "colossal/run/module_names.h"

namespace colossal::run {
namespace {

/// Targets of models that draw, if a config names none: the projections of attention, as in diffusers' scripts. The
/// rows are those of folders of diffusers, of STDiT, and of models whose folders join matrices (Open-Sora 2).
const std::vector<std::string> kAttentionTargets[] = {
    {"to_q", "to_k", "to_v", "to_out.0"},
    {"attn.qkv", "attn.proj", "q_linear", "kv_linear", "cross_attn.proj"},
    {"attention.qkv", "attention.out"}};
const std::vector<std::string> kTextTargets{"q_proj", "k_proj", "v_proj", "out_proj"};

void check_trains(const LowRankKeys& keys, const LinearModule& module) {
  require(!module.only_merged, "adapter", "adapters of patches and of outputs can be merged, but not trained: got ",
          module.name, " in adapter.targets; name other layers, such as to_q or ff.net.0.proj");
  const bool changes_alone = module.is_convolution() || module.between_blocks;
  require(
      !changes_alone || (keys.kind == "lora" && keys.dropout == 0), "adapter",
      "adapters of convolutions and of layers between blocks must be of adapter.kind = \"lora\" with adapter.dropout "
      "= 0: got kind ",
      keys.kind, " and dropout ", keys.dropout, " for ", module.name,
      "; change them, or name adapter.targets without it");
}

/// Checks the adapters of a model with its text encoder within it, and of one without.
void check_text_targets(const LowRankKeys& keys, const AdapterModules& modules, const std::vector<size_t>& selected,
                        const models::ModelShape& shape) {
  if (!keys.text_encoder) return;
  require(models::text_encoder_blocks(shape) > 0, "adapter",
          "adapter.text_encoder needs a model that draws what captions say: got ",
          with_article(shape.architecture->name), "; leave it out");
  require(keys.kind == "lora" && keys.trained.empty(), "adapter",
          "adapter.text_encoder needs adapter.kind = \"lora\" and no adapter.trained: got kind ", keys.kind, " and ",
          keys.trained.size(), " trained modules");
  require(std::any_of(selected.begin(), selected.end(),
                      [&](size_t i) { return models::text_encoder_of_name(modules.linear()[i].name) >= 0; }),
          "adapter", "adapter.targets must name layers of the text encoder with adapter.text_encoder: got ",
          join(keys.targets), "; add ", join(kTextTargets));
}

/// Returns the first targets that the model has.
std::vector<std::string> attention_targets(const models::ModelShape& shape) {
  const AdapterModules modules(shape);
  const auto is_there = [&](const std::string& target) {
    return std::any_of(modules.linear().begin(), modules.linear().end(),
                       [&](const LinearModule& module) { return names_module(target, module.name); });
  };
  for (const std::vector<std::string>& targets : kAttentionTargets)
    if (std::all_of(targets.begin(), targets.end(), is_there)) return targets;
  return kAttentionTargets[0];
}

/// Returns the keys with the default targets of the model.
LowRankKeys with_targets(const Config& config, LowRankKeys keys, const models::ModelShape& shape) {
  const bool draws = shape.part<models::DenoiserSizes>().channels > 0;
  if (draws && keys.from.empty() && !config.tables.values().contains("adapter.targets")) {
    keys.targets = keys.is_low_rank() ? attention_targets(shape) : kAttentionTargets[0];
    if (keys.text_encoder) keys.targets.insert(keys.targets.end(), kTextTargets.begin(), kTextTargets.end());
  }
  return keys;
}

}  // namespace

nn::Adapter low_rank_adapter(const LowRankKeys& keys, const models::ModelShape& shape) {
  if (keys.kind == "none") return {};
  const AdapterModules modules(shape);
  std::set<std::string> whole = modules.parameters_of("adapter.trained", keys.trained);
  if (shape.has_values()) whole.insert(concat(models::kValueHead, ".weight"));
  const auto trained = std::make_shared<const std::set<std::string>>(std::move(whole));
  const auto parts = std::make_shared<std::map<std::string, std::vector<nn::LowRankPart>>>();
  const std::vector<size_t> selected = modules.selected("adapter.targets", keys.targets, *trained);
  check_text_targets(keys, modules, selected, shape);
  for (const size_t index : selected) {
    const LinearModule& module = modules.linear()[index];
    check_trains(keys, module);
    const int64_t rank = keys.rank_of(module.name);
    require(rank <= std::min(module.in, module.part.count), "adapter", "adapter.rank must be at most ",
            std::min(module.in, module.part.count), ", the smaller side of ", module.name, " [", module.part.count,
            ", ", module.in, "]: got ", rank, "; lower it, or name adapter.targets without this module");
    nn::LowRankPart part = module.part;
    part.rank = rank;
    part.scale = keys.factor_of(module.name);
    require(!module.is_stack() || (keys.kind == "lora" && keys.dropout == 0), "adapter",
            "adapters of experts must be of adapter.kind = \"lora\" with adapter.dropout = 0, as in peft: got kind ",
            keys.kind, " and dropout ", keys.dropout, " for ", module.name,
            "; change them, or name adapter.targets without experts");
    (*parts)[module.weight].push_back(std::move(part));
  }
  nn::Adapter adapter;
  adapter.treatment = [trained](const std::string& name) {
    const bool trains = nn::is_low_rank(name) || trained->contains(name);
    return nn::Treatment{.trains = trains, .saved = trains};
  };
  nn::LowRank options{.rank = keys.rank, .dropout = keys.dropout, .magnitudes = keys.kind == "dora"};
  std::shared_ptr<const FrozenBase> base;
  if (keys.base != "model") base = std::make_shared<const FrozenBase>(keys, shape, *trained);
  adapter.product = [options, parts, base](std::shared_ptr<const nn::Product> product, const nn::Parameter& weight,
                                           nn::Parameters& parameters) {
    if (base) product = base->wrap(std::move(product), weight, parameters);
    const auto found = parts->find((weight.stack ? *weight.stack : weight).own_name());
    if (found == parts->end()) return product;
    nn::LowRank own = options;
    if (weight.stack) {
      own.rank = found->second.front().rank.value_or(options.rank);
      own.scale = found->second.front().scale.value_or(options.scale);
    } else {
      own.parts = found->second;
    }
    return nn::with_low_rank(std::move(product), weight, parameters, own);
  };
  return adapter;
}

LowRankKeys with_new_head(LowRankKeys keys, const models::ModelShape& shape) {
  if (shape.outputs() == 0 || keys.kind == "none") return keys;
  const std::set<std::string> trained = AdapterModules(shape).parameters_of("adapter.trained", keys.trained);
  if (!trained.contains(concat(models::kScoreHead, ".weight"))) keys.trained.emplace_back(kScoreModule);
  return keys;
}

LowRankKeys adapter_keys(const Config& config) {
  struct Table {
    LowRankKeys keys;
    void fields(Fields& f) { f.section("adapter", keys, ""); }
  } table;
  ConfigDocument own;
  for (const auto& [key, value] : config.tables.values())
    if (key.starts_with("adapter.")) own.put(key, value);
  own.read(table);
  return table.keys;
}

AdapterRow low_rank_row() {
  return {.table = "adapter",
          .keys = LowRankKeys{},
          .complete = [](const Config& config, const OwnKeys& own, const models::ModelShape& shape) -> OwnKeys {
            const auto given = own.as<LowRankKeys>();
            if (const AdapterKind* kind = adapter_kind(given.kind))
              return kind->complete ? OwnKeys(kind->complete(config, given)) : own;
            const LowRankKeys keys = with_targets(config, given, shape);
            return with_new_head(with_source(config, keys, shape), shape);
          },
          .make =
              [](const Config& config, const OwnKeys& own, const models::ModelShape& shape) {
                const auto keys = own.as<LowRankKeys>();
                if (const AdapterKind* kind = adapter_kind(keys.kind)) return adapter_of(*kind, keys, shape);
                require(keys.kind == "none" || keys.dropout == 0 || !config.training.cuda_graph, "adapter",
                        "adapter.dropout must be 0 with training.cuda_graph, which would record its seeds: got ",
                        keys.dropout, "; set one of them to its default");
                require(keys.kind != "none" || keys.base == "model", "adapter",
                        "adapter.base must be \"model\" without adapters, because codes are not trained: got \"",
                        keys.base, "\"; set adapter.kind = \"lora\", or leave adapter.base out");
                require(keys.base == "model" || config.precision.mode != "fp8", "adapter",
                        "adapter.base must be \"model\" with precision.mode = \"fp8\", which quantizes weights itself: "
                        "got \"",
                        keys.base, "\"; set precision.mode = \"bf16\", or leave adapter.base out");
                return low_rank_adapter(keys, shape);
              }};
}

}  // namespace colossal::run
