#include "colossal/models/families/bert.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/activation_key.h"
#include "colossal/models/built_in.h"
#include "colossal/models/class_names.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"
#include "colossal/models/transformer_block.h"
#include "colossal/nn/dropout.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/recompute.h"
#include "colossal/ops/activation.h"

namespace colossal::models {

void BertSizes::fields(Fields& f) {
  f.choice("objective", objective, {"masked-token", "class"},
           "training objective: masked-token = predict masked tokens, class = classify the text");
  f.integer("classes", classes, "classes", "number of classes (objective class)", 1, kMaxClasses);
  f.texts("class_names", class_names,
          "names of the classes, in order (objective class); empty = the labels in the run's data");
  f.integer("types", types, "types", "number of token types; a single text has the first", 1, kMaxSize);
  activation_field(f, activation);
}

namespace bert {  // a namespace of its own, because every family has functions of these names

bool classifies(const ModelShape& s) { return s.own.as<BertSizes>().objective == "class"; }

Task task(const ModelShape& s) {
  if (!classifies(s)) return {.writes = Writes::Nothing, .objective = "masked-token"};
  const auto own = s.own.as<BertSizes>();
  return {.writes = Writes::Nothing, .objective = "class", .classes = own.classes, .class_names = own.class_names};
}

void settle(ModelShape& s) {
  refuse_grouped_queries(s);
  if (const auto own = s.own.as<BertSizes>(); classifies(s)) check_class_names({own.classes, own.class_names});
  s.tied = s.tied && !classifies(s);  // a classifier has no projection to the vocabulary that could share the weight
}

void add_masked_token_head(Model& model, const ModelShape& s, nn::Embedding* embedding, nn::Layers& layers) {
  std::shared_ptr<nn::Dense> dense = layers.dense("head.transform", s.hidden, s.hidden, {.deviation = kDeviation});
  std::shared_ptr<nn::Norm> norm = layers.layer_norm("head.norm", s.hidden, {s.norm_epsilon});
  const nn::Unary activation = ops::activation(s.own.as<BertSizes>().activation).plain;
  model.norm = [=](const at::Tensor& x, const nn::ForwardContext&) {
    return norm->forward(activation(dense->forward(x)));
  };
  model.head = layers.lm_head("head", s.hidden, s.vocabulary,
                              {.deviation = kDeviation, .tied = s.tied ? embedding : nullptr, .bias = true});
}

void add_class_head(Model& model, const ModelShape& s, nn::Layers& layers) {
  std::shared_ptr<nn::Dense> pooler = layers.dense("head.pooler", s.hidden, s.hidden, {.deviation = kDeviation});
  std::shared_ptr<nn::Dropout> dropout = layers.dropout("head.dropout", s.hidden, s.dropout);
  model.norm = [=](const at::Tensor& x, nn::ForwardContext step) {
    step.parts.set(nn::ClassTokens{});
    return dropout->forward(pooler->forward(x.narrow(1, 0, 1)).tanh(), step);
  };
  model.head = layers.classifier("head", s.hidden, s.own.as<BertSizes>().classes, kDeviation);
}

Model make(const ModelShape& s, nn::Layers& layers) {
  Model model;
  model.fields = {"ids", "positions"};
  std::shared_ptr<nn::Embedding> tokens = layers.embedding("embedding", s.vocabulary, s.hidden, kDeviation);
  std::shared_ptr<nn::Embedding> positions = layers.positions("positions", s.positions, s.hidden, kDeviation);
  std::shared_ptr<nn::Embedding> types = layers.positions("types", s.own.as<BertSizes>().types, s.hidden, kDeviation);
  std::shared_ptr<nn::Norm> norm = layers.layer_norm("embedding_norm", s.hidden, {s.norm_epsilon});
  std::shared_ptr<nn::Dropout> dropout = layers.dropout("embedding.dropout", s.hidden, s.dropout);
  model.embed = [=](const tensor::Batch& batch, const nn::ForwardContext& step) {
    const at::Tensor& ids = batch.at("ids");
    const at::Tensor placed = tokens->forward(ids, step) + positions->forward(step.positions, step);
    return dropout->forward(norm->forward(placed + types->forward(at::zeros_like(ids), step)), step);
  };
  add_transformer_blocks(model, s,
                         {.placement = BlockVariant::Placement::After,
                          .activation = ops::activation(s.own.as<BertSizes>().activation).plain,
                          .attention = {.causal = false}},
                         layers);
  if (classifies(s))
    add_class_head(model, s, layers);
  else
    add_masked_token_head(model, s, tokens.get(), layers);
  return model;
}

ModelShape sized(int64_t vocabulary, int64_t hidden, int64_t layers, int64_t heads, int64_t positions) {
  return {.vocabulary = vocabulary,
          .hidden = hidden,
          .layers = layers,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = hidden / heads,
          .ffn = 4 * hidden,
          .positions = positions,
          .norm_epsilon = 1e-12};
}

std::vector<Preset> presets() {
  // Section 3 of the paper, and the vocabulary of its uncased models.
  return {{"bert-tiny", sized(258, 128, 4, 4, 256)},
          {"bert-base", sized(30522, 768, 12, 12, 512)},
          {"bert-large", sized(30522, 1024, 24, 16, 512)}};
}

constexpr const char* kTiedBias = "cls.predictions.bias";
constexpr const char* kOwnBias = "cls.predictions.decoder.bias";

/// Returns the name of the head's bias. transformers gives a head with its own weight also its own bias.
std::string head_bias(const ModelShape& s) { return classifies(s) ? "classifier.bias" : s.tied ? kTiedBias : kOwnBias; }

/// Returns the tensors of heads that the objective does not have. Tensors of the objective's own head are read, even if
/// this list contains them.
std::vector<IgnoredTensor> ignored_tensors() {
  std::vector<IgnoredTensor> tensors;
  const std::string buffer = "positions are counted", pooler = "the head for masked tokens does not pool",
                    other = "a head of another objective", unused = "the decoder's own bias is added in its place";
  for (const std::string prefix : {"bert.", ""}) {
    tensors.push_back({prefix + "embeddings.position_ids", buffer});
    tensors.push_back({prefix + "pooler.dense.weight", pooler});
    tensors.push_back({prefix + "pooler.dense.bias", pooler});
  }
  tensors.push_back({kTiedBias, unused});
  const std::string transform = "cls.predictions.transform.";
  for (const std::string& name :
       {std::string("classifier.weight"), std::string("classifier.bias"), std::string("cls.seq_relationship.weight"),
        std::string("cls.seq_relationship.bias"), std::string("cls.predictions.decoder.weight"), std::string(kOwnBias),
        transform + "dense.weight", transform + "dense.bias", transform + "LayerNorm.weight",
        transform + "LayerNorm.bias", transform + "LayerNorm.gamma", transform + "LayerNorm.beta"})
    tensors.push_back({name, other});
  return tensors;
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  const std::string self = "attention.self.", embeddings = "bert.embeddings.";
  return names_in_folder(s, {.outside = {{"embedding", {embeddings + "word_embeddings"}},
                                         {"positions", {embeddings + "position_embeddings"}},
                                         {"types", {embeddings + "token_type_embeddings"}},
                                         {"embedding_norm", {embeddings + "LayerNorm"}},
                                         {"head.pooler", {"bert.pooler.dense"}},
                                         {"head.transform", {"cls.predictions.transform.dense"}},
                                         {"head.norm", {"cls.predictions.transform.LayerNorm"}},
                                         {"head.bias", {head_bias(s)}},
                                         {"head", {classifies(s) ? "classifier" : "cls.predictions.decoder"}}},
                             .blocks = "bert.encoder.layer.",
                             .in_block = {{"attention.qkv", {self + "query", self + "key", self + "value"}},
                                          {"attention.out", {"attention.output.dense"}},
                                          {"norm_1", {"attention.output.LayerNorm"}},
                                          {"mlp.up", {"intermediate.dense"}},
                                          {"mlp.down", {"output.dense"}},
                                          {"norm_2", {"output.LayerNorm"}}}});
}

constexpr const char* kClassifier = "BertForSequenceClassification";

void keys(FolderKeys& k, ModelShape& s, BertSizes& own) {
  k.required("vocab_size", s.vocabulary);
  k.required("hidden_size", s.hidden);
  k.required("num_hidden_layers", s.layers);
  k.required("num_attention_heads", s.heads);
  if (k.reads()) s.kv_heads = s.heads;
  if (k.reads()) s.head_dim = s.hidden / std::max<int64_t>(1, s.heads);  // validate() refuses values that do not fit
  k.required("max_position_embeddings", s.positions);
  k.required("intermediate_size", s.ffn);
  k.optional("layer_norm_eps", s.norm_epsilon, 1e-12);
  k.optional("hidden_dropout_prob", s.dropout, 0.1);
  k.written("attention_probs_dropout_prob", 0.0);
  bool tied = s.tied || own.objective == "class";
  k.optional("tie_word_embeddings", tied, true);
  s.tied = tied;
  k.optional("type_vocab_size", own.types, 2);
  activation_key(k, "hidden_act", own.activation, "gelu");
  k.fixed("position_embedding_type", "absolute");
  k.only("is_decoder", false);
}

ModelShape from_json(const nlohmann::json& j) {
  const FolderConfig c(j, "BERT");
  ModelShape s = read_folder(c, keys);
  auto own = s.own.as<BertSizes>();
  own.classes = count_classes(j);
  const auto heads = c.value("architectures", nlohmann::json::array());
  if (std::find(heads.begin(), heads.end(), kClassifier) != heads.end()) {
    own.objective = "class";
    // the head for masked tokens does not use the names, so they are not checked
    own.class_names = classes_of(j).names;
  }
  s.own = own;
  return s;
}

void check_training(const FolderConfig& c, const ModelShape& s) {
  if (classifies(s)) c.must_be_to_train("classifier_dropout", s.dropout);
}

nlohmann::json to_json(const ModelShape& s) {
  const auto own = s.own.as<BertSizes>();
  nlohmann::json j = write_folder("bert", classifies(s) ? kClassifier : "BertForMaskedLM", s, keys);
  if (classifies(s))
    write_classes({own.classes, own.class_names}, j);
  else
    j["num_labels"] = own.classes;
  return j;
}

}  // namespace bert

Architecture bert_architecture() {
  using namespace bert;
  return {.name = "bert",
          .own = BertSizes{},
          .presets = presets(),
          .make = make,
          .task = task,
          .settle = settle,
          .hugging_face = {.model_type = "bert",
                           .names = external_names,
                           .from_json = from_json,
                           .to_json = to_json,
                           .check_training = check_training,
                           .prefix = "bert.",
                           .head = "cls.predictions.decoder.weight",
                           .copies = {tied_copy(kOwnBias, kTiedBias)},
                           .ignored = ignored_tensors(),
                           // Before version 5 transformers wrote the one bias that both share under the first name.
                           .old_endings = {{"LayerNorm.weight", "LayerNorm.gamma"},
                                           {"LayerNorm.bias", "LayerNorm.beta"},
                                           {"predictions.decoder.bias", "predictions.bias"}},
                           .own_head = {"objective", "classes", "class_names"},
                           .pooler = {"objective=class"}}};
}

}  // namespace colossal::models
