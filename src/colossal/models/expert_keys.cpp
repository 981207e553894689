#include "colossal/models/expert_keys.h"

#include <algorithm>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/models/shape.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/experts.h"

namespace colossal::models {
namespace {

/// The largest count of experts, and of experts that the shared one stands for. Its product with a size does not
/// overflow.
constexpr int64_t kMaxExperts = 1 << 16;

/// The table as the only keys of a struct.
struct ExpertTable {
  ExpertKeys experts{};
  void fields(Fields& f) { expert_table(f, experts); }
};

/// Returns the names of the keys that differ from their defaults, separated by commas.
std::string given_keys(const ExpertKeys& keys) {
  const std::vector<KeyHelp> defaults = describe_config(ExpertKeys()), now = describe_config(keys);
  std::string names;
  for (size_t i = 0; i < now.size(); ++i)
    if (now[i].default_value != defaults[i].default_value) names += (names.empty() ? "" : ", ") + now[i].key;
  return names;
}

void check_layers(const ExpertKeys& keys, int64_t layers) {
  for (const int64_t layer : keys.dense)
    require(layer < layers, "experts", "dense must have indices of blocks, which are below layers: got ", layer,
            " in a model of ", layers, " layers; remove it from model.experts.dense");
  int64_t first = (keys.dense_first + keys.every) / keys.every * keys.every - 1;
  while (first < layers && !keys.is_mixture(first)) first += keys.every;
  require(first < layers, "experts", "dense_first, every and dense must leave a block with experts: got none in ",
          layers, " layers; lower model.experts.dense_first or every, or set model.experts.count = 0");
}

}  // namespace

void ExpertKeys::fields(Fields& f) {
  f.integer("count", count, "experts", "experts of a layer, in place of its feed-forward layer; 0 = the model is dense",
            0, kMaxExperts);
  f.integer("used", used, "experts", "number of experts that each token goes through", 1, kMaxExperts);
  f.integer("ffn", ffn, "features", "width inside one expert; 0 = the value of model.ffn", 0, kMaxSize);
  f.integer("shared", shared, "experts",
            "experts that every token goes through, as one feed-forward layer of shared * ffn features", 0,
            kMaxExperts);
  f.integer("dense_first", dense_first, "blocks", "number of blocks at the beginning that stay dense", 0, kMaxSize);
  f.integer("every", every, "blocks", "distance of blocks with experts; the blocks between them stay dense", 1,
            kMaxSize);
  f.integers("dense", dense, "blocks", "indices of further blocks that stay dense, counted from 0", 0, kMaxSize);
  f.choice("score", score, {"softmax", "sigmoid"}, "function that turns the router's logits into scores");
  f.flag("normalize", normalize, "division of the weights of a token's experts by their sum");
  f.number("scale", scale, "", "factor of the weights of a token's experts, after normalize", 1e-6, 1e6);
  f.integer("groups", groups, "groups", "number of equal groups of experts, a divisor of count", 1, kMaxExperts);
  f.integer("groups_used", groups_used, "groups", "number of best groups from which a token chooses its experts", 1,
            kMaxExperts);
  f.number("capacity", capacity, "shares",
           "training: maximum number of tokens of an expert, as a multiple of its even share; further tokens skip the "
           "expert; 0 = no limit",
           0, 1e6);
  const bool had_bias = bias;
  f.flag("bias", bias, "balance biases, which are added to the scores when a token chooses its experts");
  if (bias != had_bias) balance_loss = bias ? 0 : ExpertKeys().balance_loss;
  f.number("bias_rate", bias_rate, "",
           "training: distance by which a step moves the balance biases; 0 = they do not change", 0, 1e6);
  f.number("balance_loss", balance_loss, "",
           "training: strength of the loss that evens out the load of experts; 0 = off; with bias the default is 0", 0,
           1e6);
  f.choice("balance_over", balance_over, {"batch", "rank"},
           "training: tokens that the balance loss compares; rank = each rank balances its own tokens");
  f.number("z_loss", z_loss, "",
           "training: strength of the loss on large logits of the router, mean(logsumexp(logits)^2); 0 = off", 0, 1e6);
}

bool ExpertKeys::is_mixture(int64_t layer) const {
  const bool is_listed = std::find(dense.begin(), dense.end(), layer) != dense.end();
  return count > 0 && layer >= dense_first && (layer + 1) % every == 0 && !is_listed;
}

nn::ExpertOptions ExpertKeys::options(const ModelShape& shape) const {
  using Options = nn::ExpertOptions;
  return {.count = count,
          .used = used,
          .ffn = ffn > 0 ? ffn : shape.ffn,
          .score = score == "sigmoid" ? Options::Score::Sigmoid : Options::Score::Softmax,
          .normalize = normalize,
          .scale = scale,
          .groups = groups,
          .groups_used = groups_used,
          .capacity = capacity,
          .balance_loss = balance_loss,
          .balance_over = balance_over == "rank" ? Options::BalanceOver::Rank : Options::BalanceOver::Batch,
          .z_loss = z_loss,
          .bias = bias,
          .bias_rate = bias_rate};
}

int64_t ExpertKeys::shared_ffn(const ModelShape& shape) const { return shared * (ffn > 0 ? ffn : shape.ffn); }

void expert_table(Fields& f, ExpertKeys& keys) {
  f.section("experts", keys, "mixture of experts in place of feed-forward layers");
}

ExpertKeys expert_keys_of(const ModelShape& shape) {
  OwnSizes own = shape.own;
  const auto all = ConfigDocument::parse(fields_to_toml([&](Fields& f) { own.fields(f); }), "the keys of the model");
  ConfigDocument table;
  for (const auto& [key, value] : all.values())
    if (key.starts_with("experts.")) table.put(key, value);
  ExpertTable read;
  table.read(read);
  return read.experts;
}

ModelShape with_expert_capacity(ModelShape shape, double capacity) {
  ConfigDocument change;
  change.put("experts.capacity", ConfigValue{.value = capacity, .where = "", .raw = std::nullopt});
  change.read(shape.own);
  return shape;
}

std::vector<std::string> expert_training_keys() {
  return {"experts.capacity", "experts.balance_loss", "experts.balance_over", "experts.z_loss", "experts.bias_rate"};
}

BlockVariants with_experts(const BlockVariants& blocks, const ExpertKeys& keys, const ModelShape& shape) {
  return [=, options = keys.options(shape), shared = keys.shared_ffn(shape)](int64_t layer) {
    BlockVariant its = blocks(layer);
    if (keys.is_mixture(layer)) its.experts = options, its.shared_ffn = shared;
    return its;
  };
}

BlockVariants with_experts(const BlockVariant& block, const ExpertKeys& keys, const ModelShape& shape) {
  return with_experts([=](int64_t) { return block; }, keys, shape);
}

void settle_experts(const ExpertKeys& keys, ModelShape& shape) {
  shape.set(MixtureSizes{keys.count});
  if (keys.count == 0) {
    require(keys == ExpertKeys(), "experts",
            "count must be above 0 if other keys of model.experts are set: got count 0 with ", given_keys(keys),
            "; set model.experts.count, or remove the others");
    return;
  }
  nn::check_options("model.experts", keys.options(shape));
  check_layers(keys, shape.layers);
  require(keys.bias || keys.bias_rate == 0, "experts",
          "bias_rate needs bias = true, because it moves those biases: got ", keys.bias_rate,
          "; set model.experts.bias = true or model.experts.bias_rate = 0");
  require(keys.shared_ffn(shape) <= kMaxSize, "experts", "shared * ffn must be at most ", kMaxSize, ": got shared ",
          keys.shared, "; lower model.experts.shared");
}

}  // namespace colossal::models
