#include "colossal/models/families/t5.h"

#include <ATen/ATen.h>

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/models/activation_key.h"
#include "colossal/models/built_in.h"
#include "colossal/models/shape_parts.h"
#include "colossal/models/transformer_block.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/dropout.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/kv_cache.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/recompute.h"
#include "colossal/nn/relative_attention.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/attention/mask.h"

namespace colossal::models {

void T5Sizes::fields(Fields& f) {
  f.integer("decoder_layers", decoder_layers, "blocks", "number of layers that belong to the decoder; 0 = half", 0,
            kMaxSize);
  f.integer("source_tokens", source_tokens, "tokens",
            "part of data.sequence that the encoder reads; the rest is the target; 0 = half", 0, kMaxSize);
  f.integer("start_id", start_id, "", "id of the token that starts the target in the decoder and pads rows", 0,
            kMaxSize);
  f.integer("buckets", buckets, "buckets", "number of buckets of relative positions", 4, kMaxSize);
  f.previously("farthest")
      .integer("max_distance", max_distance, "tokens", "distance at which the last bucket begins", 2, kMaxSize);
  activation_field(f, activation);
  f.flag("gated", gated, "gated feed-forward layers (v1.1)");
  f.flag("scaled_head", scaled_head, "division of the head's input by the square root of hidden (v1.0)");
}

namespace t5 {  // a namespace of its own, because every family has functions of these names

constexpr int64_t kEnd = 1;  // the id of </s>

double root(int64_t size) { return std::sqrt(static_cast<double>(size)); }

int64_t encoder_layers(const ModelShape& s) { return s.layers - s.own.as<T5Sizes>().decoder_layers; }

Task task(const ModelShape& s) {
  const auto own = s.own.as<T5Sizes>();
  if (own.encoder_only) return {.writes = Writes::Nothing, .objective = ""};
  return {
      .writes = Writes::Answer, .objective = "target", .source_tokens = own.source_tokens, .start_id = own.start_id};
}

void settle(ModelShape& s) {
  refuse_grouped_queries(s);
  auto own = s.own.as<T5Sizes>();
  if (own.decoder_layers == 0 && !own.encoder_only) own.decoder_layers = s.layers / 2;
  require(own.encoder_only ? own.decoder_layers == 0 : own.decoder_layers > 0 && own.decoder_layers < s.layers, "model",
          own.encoder_only ? "an encoder alone has no decoder_layers: got layers "
                           : "layers must count encoder and decoder together, at least one of each: got layers ",
          s.layers, ", decoder_layers ", own.decoder_layers);
  require(!own.encoder_only || s.dropout == 0, "model", "a T5 encoder that reads captions has no dropout: got ",
          s.dropout, "; set model.dropout = 0");
  require(own.start_id < s.vocabulary || s.vocabulary == 0, "model", "start_id must lie in the vocabulary of ",
          s.vocabulary, ": got ", own.start_id);
  for (const bool both_sides : {false, true}) nn::RelativeBuckets{own.buckets, own.max_distance, both_sides}.of(1, 1);
  s.own = own;
  if (own.encoder_only)
    s.set(TextEncoderSizes{.features = s.hidden, .end_id = kEnd, .begins = false, .reads_pads = true});
}

/// The learned relative positions of a stack, which its blocks share.
class Positions {
 public:
  Positions(const std::string& name, const ModelShape& s, bool both_sides, nn::Layers& make)
      : buckets_{s.own.as<T5Sizes>().buckets, s.own.as<T5Sizes>().max_distance, both_sides},
        table_(make.head_table(name, buckets_.count, s.heads, 1 / root(s.hidden))) {}
  /// [N_local, queries, keys]
  at::Tensor of(int64_t queries, int64_t keys, at::Device device) {
    if (!ids_.defined() || ids_.size(0) != queries || ids_.size(1) != keys)
      ids_ = buckets_.of(queries, keys).to(device);
    return nn::lookup(table_->forward(), ids_).permute({2, 0, 1});
  }

 private:
  nn::RelativeBuckets buckets_;
  std::unique_ptr<nn::HeadTable> table_;
  at::Tensor ids_;  // buckets for the last requested lengths; all blocks request the same ones
};

/// Indices of the states of a row, [source | answer]. The answer is the first, because the head reads the first.
constexpr int kAnswer = 0, kSource = 1;

/// One of the two states, with the documents of its tokens; undefined = one document per row.
struct Part {
  at::Tensor hidden, documents;
};

int64_t source_of(const Task& task, int64_t tokens, const nn::ForwardContext& step) {
  const auto* given = step.parts.find<nn::SourceTokens>();
  const int64_t source = given ? given->count : task.source_of(tokens);
  require(source >= 0 && source <= tokens, "model", "source_tokens must be at most the row's length, ", tokens,
          ": got ", source);
  return source;
}

/// Returns the documents of all tokens of the rows; undefined = one document per row.
at::Tensor documents_of(const nn::ForwardContext& step) {
  const at::Tensor& documents = step.documents;
  const bool is_plain = documents.defined() && !documents.is_meta() && ops::is_document_a_row(documents);
  return is_plain ? at::Tensor() : documents;
}

/// Returns the state whose tokens follow `first` other tokens of the row.
Part part_of(const at::Tensor& hidden, const at::Tensor& documents, int64_t first) {
  return {hidden, documents.defined() ? documents.narrow(1, first, hidden.size(1)) : documents};
}

std::vector<State> states(const ModelShape& s) {
  using tensor::Dim;
  const auto tokens_of = [task = task(s)](const nn::ForwardContext& step, int state) {
    const int64_t tokens = step.batch->tokens(), source = source_of(task, tokens, step);
    return state == kSource ? source : tokens - source;
  };
  const auto state = [&](const char* name, int index) -> State {
    return {.name = name,
            .dims = {Dim::Row, Dim::Token, Dim::Feature},
            .sizes = [=, hidden = s.hidden](const nn::ForwardContext& step, int64_t) -> std::vector<int64_t> {
              return {step.batch->rows(), tokens_of(step, index), hidden};
            }};
  };
  return {state("answer", kAnswer), state("source", kSource)};
}

/// Attention of one state to itself or to the other state, and the sum of the branch with the first.
class AttentionBranch {
 public:
  /// `layer`: number of the layer in a cache, for decoding. `positions`: null for attention to the other state.
  AttentionBranch(const std::string& name, const ModelShape& s, int64_t layer, std::shared_ptr<Positions> positions,
                  bool causal, nn::Layers& make)
      : layer_(layer), positions_(std::move(positions)), causal_(causal) {
    const double of_hidden = 1 / root(s.hidden), of_heads = 1 / root(s.heads * s.head_dim);
    heads_ = make.cross_heads(name, s.attention(), {.bias = false, .deviation = of_hidden / root(s.head_dim)},
                              {.bias = false, .deviation = of_hidden});
    out_ = make.from_heads(name + ".out", s.attention(), {.bias = false, .deviation = of_heads});
    dropout_ = make.dropout(name + ".dropout", s.hidden, s.dropout);
  }

  at::Tensor forward(const Part& x, const Part& seen, const nn::ForwardContext& step) const {
    nn::Heads heads = heads_->forward(x.hidden, seen.hidden, step);
    nn::AttentionCache* cache = nn::cache_of(step);
    if (cache && layer_ >= 0) {
      const nn::KeysValues held = cache->append(layer_, heads.k, heads.v, step);
      heads.k = held.k, heads.v = held.v;
    }
    nn::BiasedScores scores{.causal = causal_};
    if (positions_) scores.bias = positions_->of(heads.q.size(1), heads.k.size(1), heads.q.device());
    if (x.documents.defined()) {
      scores.query_documents = heads.tokens.rows_of(x.documents);
      scores.key_documents = heads.tokens.rows_of(seen.documents);
    }
    return dropout_->forward(out_->forward(nn::biased_attention(heads, scores), step), step);
  }

 private:
  int64_t layer_;
  std::shared_ptr<Positions> positions_;
  bool causal_;
  std::unique_ptr<nn::CrossProjection> heads_;
  std::unique_ptr<nn::OutputProjection> out_;
  std::unique_ptr<nn::Dropout> dropout_;
};

class FeedForwardBranch {
 public:
  FeedForwardBranch(const std::string& name, const ModelShape& s, nn::Layers& make) {
    const auto own = s.own.as<T5Sizes>();
    const ops::Activation& activation = ops::activation(own.activation);
    activation_ = own.gated ? activation.gated : activation.plain;
    const double deviation = 1 / root(s.hidden);
    up_ = own.gated ? make.expand(name + ".gate_up", s.hidden, 2 * s.ffn,
                                  {.bias = false, .deviation = deviation, .segments = {{s.ffn}, {s.ffn}}})
                    : make.expand(name + ".up", s.hidden, s.ffn, {.bias = false, .deviation = deviation});
    down_ = make.contract(name + ".down", s.ffn, s.hidden, {.bias = false, .deviation = 1 / root(s.ffn)});
    dropout_ = make.dropout(name + ".dropout", s.hidden, s.dropout);
  }
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) const {
    return dropout_->forward(down_->forward(up_->forward(x).map(activation_, step)), step);
  }

 private:
  nn::Unary activation_;
  std::unique_ptr<nn::Expand> up_;
  std::unique_ptr<nn::Contract> down_;
  std::unique_ptr<nn::Dropout> dropout_;
};

std::unique_ptr<nn::Norm> make_rms(const std::string& name, const ModelShape& s, nn::Layers& make) {
  return make.rms_norm(name, s.hidden, {.epsilon = s.norm_epsilon});
}

/// A block that works on the source. The last one also applies the norm; all decoder blocks read its output.
class EncoderBlock {
 public:
  EncoderBlock(const ModelShape& s, int64_t index, std::shared_ptr<Positions> positions, nn::Layers& make) {
    const std::string name = concat("blocks.", index);
    norm_1_ = make_rms(name + ".norm_1", s, make);
    attention_ = std::make_unique<AttentionBranch>(name + ".attention", s, -1, std::move(positions), false, make);
    norm_2_ = make_rms(name + ".norm_2", s, make);
    feed_forward_ = std::make_unique<FeedForwardBranch>(name + ".mlp", s, make);
    if (index + 1 < encoder_layers(s) || s.own.as<T5Sizes>().encoder_only) return;  // which has the norm of the model
    end_ = make_rms(name + ".encoder_norm", s, make);
    end_dropout_ = make.dropout(name + ".encoder_norm.dropout", s.hidden, s.dropout);
  }
  at::Tensor forward(const at::Tensor& source, const nn::ForwardContext& step) const {
    if (source.size(1) == 0) return source;
    const Part normed = part_of(norm_1_->forward(source), documents_of(step), 0);
    at::Tensor h = source + attention_->forward(normed, normed, step);
    h = h + feed_forward_->forward(norm_2_->forward(h), step);
    return end_ ? end_dropout_->forward(end_->forward(h), step) : h;
  }

 private:
  std::unique_ptr<nn::Norm> norm_1_, norm_2_, end_;  // end_: null unless this is the last block
  std::unique_ptr<AttentionBranch> attention_;
  std::unique_ptr<FeedForwardBranch> feed_forward_;
  std::unique_ptr<nn::Dropout> end_dropout_;
};

/// A block that works on the answer and reads the source.
class DecoderBlock {
 public:
  DecoderBlock(const ModelShape& s, int64_t index, std::shared_ptr<Positions> positions, nn::Layers& make) {
    const std::string name = concat("blocks.", index);
    const int64_t layer = 2 * (index - encoder_layers(s));
    norm_1_ = make_rms(name + ".norm_1", s, make);
    attention_ = std::make_unique<AttentionBranch>(name + ".attention", s, layer, std::move(positions), true, make);
    norm_2_ = make_rms(name + ".norm_2", s, make);
    cross_ = std::make_unique<AttentionBranch>(name + ".cross", s, layer + 1, nullptr, false, make);
    norm_3_ = make_rms(name + ".norm_3", s, make);
    feed_forward_ = std::make_unique<FeedForwardBranch>(name + ".mlp", s, make);
  }
  at::Tensor forward(const at::Tensor& answer, const at::Tensor& source, const nn::ForwardContext& step) const {
    if (answer.size(1) == 0) return answer;
    const at::Tensor documents = documents_of(step);
    const int64_t behind = source.size(1);
    const Part normed = part_of(norm_1_->forward(answer), documents, behind);
    at::Tensor h = answer + attention_->forward(normed, normed, step);
    h = h + cross_->forward(part_of(norm_2_->forward(h), documents, behind), part_of(source, documents, 0), step);
    return h + feed_forward_->forward(norm_3_->forward(h), step);
  }

 private:
  std::unique_ptr<nn::Norm> norm_1_, norm_2_, norm_3_;
  std::unique_ptr<AttentionBranch> attention_, cross_;
  std::unique_ptr<FeedForwardBranch> feed_forward_;
};

constexpr const char *kEncoderPositions = "encoder_positions", *kDecoderPositions = "decoder_positions";

std::optional<std::pair<int64_t, int64_t>> shared(const ModelShape& s, const std::string& parameter) {
  if (parameter.starts_with(concat(kEncoderPositions, "."))) return std::pair{int64_t{0}, encoder_layers(s)};
  if (parameter.starts_with(concat(kDecoderPositions, "."))) return std::pair{encoder_layers(s), s.layers};
  return {};
}

Block encoder_block(const ModelShape& s, int64_t index, std::shared_ptr<Positions> positions, nn::Layers& layers) {
  const auto block = std::make_shared<const EncoderBlock>(s, index, std::move(positions), layers);
  return {{kSource}, {kSource}, [block](States& states, const nn::ForwardContext& step) {
            states[kSource] = block->forward(states[kSource], step);
          }};
}

Block decoder_block(const ModelShape& s, int64_t index, std::shared_ptr<Positions> positions, nn::Layers& layers) {
  const auto block = std::make_shared<const DecoderBlock>(s, index, std::move(positions), layers);
  return {{kAnswer, kSource}, {kAnswer}, [block](States& states, const nn::ForwardContext& step) {
            states[kAnswer] = block->forward(states[kAnswer], states[kSource], step);
          }};
}

/// Makes the encoder alone.
Model make_encoder(const ModelShape& s, nn::Layers& layers) {
  Model model;
  model.fields = {"ids"};
  std::shared_ptr<nn::Embedding> tokens = layers.embedding("embedding", s.vocabulary, s.hidden, 1);
  model.embed = [tokens](const tensor::Batch& batch, const nn::ForwardContext& step) {
    return tokens->forward(batch.at("ids"), step);
  };
  const auto positions = std::make_shared<Positions>(kEncoderPositions, s, true, layers);
  for (int64_t i = 0; i < s.layers; ++i) {
    const auto block = std::make_shared<const EncoderBlock>(s, i, positions, layers);
    model.blocks.emplace_back(
        [block](const at::Tensor& x, const nn::ForwardContext& step) { return block->forward(x, step); });
  }
  std::shared_ptr<nn::Norm> norm = make_rms("norm", s, layers);
  model.norm = [norm](const at::Tensor& x, const nn::ForwardContext&) { return norm->forward(x); };
  return model;
}

Model make(const ModelShape& s, nn::Layers& layers) {
  require(!layers.splits_tokens(), "parallel",
          "an encoder-decoder model must have all tokens of a row on one rank: got a layout that splits tokens; leave "
          "out parallel.sequence and parallel.tensor.sequence");
  if (s.own.as<T5Sizes>().encoder_only) return make_encoder(s, layers);
  Model model;
  model.fields = {"ids"};
  std::shared_ptr<nn::Embedding> tokens = layers.embedding("embedding", s.vocabulary, s.hidden, 1);
  std::shared_ptr<nn::Dropout> dropout = layers.dropout("embedding.dropout", s.hidden, s.dropout);
  model.states = states(s);
  const auto embed = [=, task = task(s)](States& states, const tensor::Batch& batch, const nn::ForwardContext& step) {
    const at::Tensor row = dropout->forward(tokens->forward(batch.at("ids"), step), step);
    const int64_t source = source_of(task, row.size(1), step);
    states[kSource] = row.narrow(1, 0, source);
    states[kAnswer] = row.narrow(1, source, row.size(1) - source);
  };
  model.embed = {{kAnswer, kSource}, embed};
  const auto of_encoder = std::make_shared<Positions>(kEncoderPositions, s, true, layers);
  const auto of_decoder = std::make_shared<Positions>(kDecoderPositions, s, false, layers);
  for (int64_t i = 0; i < s.layers; ++i)
    model.blocks.push_back(i < encoder_layers(s) ? encoder_block(s, i, of_encoder, layers)
                                                 : decoder_block(s, i, of_decoder, layers));
  std::shared_ptr<nn::Norm> norm = make_rms("norm", s, layers);
  std::shared_ptr<nn::Dropout> end = layers.dropout("norm.dropout", s.hidden, s.dropout);
  const double scale = s.own.as<T5Sizes>().scaled_head ? 1 / root(s.hidden) : 1;
  model.norm = [=](const at::Tensor& x, const nn::ForwardContext& step) {
    const at::Tensor answer = end->forward(norm->forward(x), step);
    return scale == 1 ? answer : answer * scale;
  };
  model.head =
      layers.lm_head("head", s.hidden, s.vocabulary, {.deviation = 1, .tied = s.tied ? tokens.get() : nullptr});
  return model;
}

ModelShape sized(int64_t hidden, int64_t blocks, int64_t heads, int64_t head_dim, int64_t ffn, bool is_first) {
  T5Sizes own;
  if (!is_first) own = {.activation = "gelu_new", .gated = true, .scaled_head = false};
  return {.vocabulary = 32128,
          .hidden = hidden,
          .layers = 2 * blocks,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = head_dim,
          .ffn = ffn,
          .positions = 1024,
          .norm_epsilon = 1e-6,
          .tied = is_first,
          .own = own};
}

/// Returns the encoder of a T5 v1.1 alone.
ModelShape encoder_of(ModelShape s) {
  auto own = s.own.as<T5Sizes>();
  own.encoder_only = true;
  s.own = own;
  s.layers /= 2, s.positions /= 2;
  return s;
}

/// Returns the presets: sizes of the paper, the table of appendix A.2; v1.1: the sizes that its authors released.
std::vector<Preset> presets() {
  models::ModelShape tiny = sized(128, 2, 4, 32, 256, false);
  tiny.vocabulary = 257;  // ids of the bytes tokenizer, as in the tiny presets of other families
  models::ModelShape captions = encoder_of(sized(64, 2, 4, 16, 128, false));
  captions.vocabulary = 259;  // bytes, begin, end and pad, as of clip-text-tiny
  return {{"t5-tiny", tiny},
          {"t5-small", sized(512, 6, 8, 64, 2048, true)},
          {"t5-base", sized(768, 12, 12, 64, 3072, true)},
          {"t5-large", sized(1024, 24, 16, 64, 4096, true)},
          {"t5-3b", sized(1024, 24, 32, 128, 16384, true)},
          {"t5-11b", sized(1024, 24, 128, 128, 65536, true)},
          {"t5-v1.1-small", sized(512, 8, 6, 64, 1024, false)},
          {"t5-v1.1-base", sized(768, 12, 12, 64, 2048, false)},
          {"t5-v1.1-large", sized(1024, 24, 16, 64, 2816, false)},
          {"t5-v1.1-xl", sized(2048, 24, 32, 64, 5120, false)},
          {"t5-v1.1-xxl", sized(4096, 24, 64, 64, 10240, false)},
          {"t5-encoder-tiny", captions},
          {"t5-v1.1-xxl-encoder", encoder_of(sized(4096, 24, 64, 64, 10240, false))}};
}

}  // namespace t5

Architecture t5_architecture() {
  return {.name = "t5",
          .own = T5Sizes{},
          .presets = t5::presets(),
          .make = t5::make,
          .task = t5::task,
          .settle = t5::settle,
          .shared = t5::shared,
          .hugging_face = t5_folder()};
}

}  // namespace colossal::models
