// Events of published training runs, as a recorder would list them for one rank of each pipeline stage: products,
// attention, memory traffic, collectives over tensor ranks, messages between stages, gradients and parameters over
// data-parallel ranks.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/collective.h"
#include "colossal/plan/cluster.h"
#include "colossal/plan/timeline.h"
#include "colossal/schedule/make.h"

namespace colossal::plan::test {

struct PublishedModel {
  int64_t layers = 1, hidden = 1, kv_hidden = 1, inner = 1, vocabulary = 1, sequence = 1;
  bool gated = false, causal = false;  ///< causal: attention leaves out pairs above the diagonal

  double block_parameters() const {
    const auto h = static_cast<double>(hidden), kv = static_cast<double>(kv_hidden), ffn = static_cast<double>(inner);
    return 2 * h * (h + kv) + (gated ? 3 : 2) * h * ffn;
  }
  double parameters() const {
    return static_cast<double>(layers) * block_parameters() + 2 * static_cast<double>(vocabulary * hidden);
  }
};

struct PublishedLayout {
  int64_t tensor = 1, pipeline = 1, chunks = 1, data = 1, micro_batches = 1;
  int64_t micro_batch = 1;      ///< samples of a micro-batch of one replica
  double recomputed = 0;        ///< share of the forward pass of a block that backward repeats
  double exposed = 1;           ///< share of the bytes of gradients and parameters that nothing hides
  bool is_fp8 = false;          ///< products of blocks in fp8; those of the head and attention stay in bf16
  bool overlaps_data = false;   ///< gradients are reduced as each chunk ends, parameters gathered ahead of use
  bool gathers_blocks = false;  ///< FSDP: parameters of each block are gathered in forward and again in backward
  int64_t ranks() const { return tensor * pipeline * data; }
  double tokens(const PublishedModel& model) const {
    return static_cast<double>(data * micro_batches * micro_batch * model.sequence);
  }
};

/// Builds the events of one rank of a stage. Ranks are numbered tensor first, then data, then stages.
class StageEvents {
 public:
  static constexpr uint8_t kForward = 1, kBackward = 2, kBf16 = 15, kFp8 = 24;  // comm::Phase, c10::ScalarType
  static constexpr double kGradientBytes = 4, kParameterBytes = 2;              // fp32 sums, bf16 weights
  static constexpr double kUpdateBytes = 32;  // of Adam with masters: reads and writes for each parameter
  static constexpr double kRowPasses = 12;    // reads and writes of [tokens, hidden] in a block: norms, sums, dropout
  static constexpr double kInnerPasses = 4;   // of [tokens, inner]: activation, gate
  static constexpr double kLogitBytes = 24;   // of each logit: losses read and write fp32 several times
  static constexpr double kAttentionBackward = 2;  // as a recorder counts: without the scores that backward repeats
  // fp8 with a scale for each tensor: a factor is read for its largest value, read again and written, 2 + 2 + 1 bytes
  static constexpr double kCastBytes = 5;

  StageEvents(const PublishedModel& model, const PublishedLayout& layout, int64_t stage)
      : model_(model), layout_(layout), stage_(stage), ffn_(model.inner * (model.gated ? 2 : 1)) {
    tokens_ = layout.micro_batch * model.sequence;
    blocks_ = static_cast<double>(model.layers) / static_cast<double>(layout.pipeline * layout.chunks);
    const int64_t first = stage * layout.tensor * layout.data;
    for (int64_t r = 0; r < layout.tensor * layout.data; ++r) role.ranks.push_back(static_cast<int>(first + r));
    role.name = "stage " + std::to_string(stage);
    add_group("tensor", first, layout.tensor, 1);
    add_group("data", first, layout.data, layout.tensor);
    add_group("pipeline", 0, layout.pipeline, layout.tensor * layout.data);
  }

  void build(const std::vector<schedule::PipelineOp>& ops) {
    if (layout_.overlaps_data)
      for (int chunk = 0; chunk < layout_.chunks; ++chunk) gathered_[chunk] = data_call(Collective::AllGather, chunk);
    std::map<int, int> left;
    for (const schedule::PipelineOp& op : ops)
      if (schedule::is_backward(op.action)) ++left[op.chunk];
    for (const schedule::PipelineOp& op : ops) {
      if (schedule::is_transfer(op.action)) {
        message(op);
        continue;
      }
      if (!schedule::is_compute(op.action)) continue;
      wait_for(op);
      const bool is_forward = op.action == schedule::Action::Forward;
      is_forward ? forward(op) : backward(op);
      if (!is_forward && --left[op.chunk] == 0 && layout_.overlaps_data)
        reduced_.push_back(data_call(Collective::ReduceScatter, op.chunk));
    }
    finish();
  }

  Role role;

 private:
  enum Group { kTensor, kData, kPipeline };

  void add_group(const char* name, int64_t first, int64_t count, int64_t stride) {
    StepEvents::Group group{name, {}};
    for (int64_t i = 0; i < count; ++i) group.ranks.push_back(static_cast<int>(first + i * stride));
    role.events.groups.push_back(std::move(group));
  }

  void push(StepEvent event, uint8_t phase) {
    event.phase = phase;
    role.events.list.push_back(event);
  }
  void product(double count, int64_t m, int64_t n, int64_t k, uint8_t phase, uint8_t dtype = kBf16) {
    push({.kind = StepEvent::Kind::Product,
          .dtype = dtype,
          .m = m,
          .n = n,
          .k = k,
          .operations = count * 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k)},
         phase);
  }
  void elementwise(double bytes, uint8_t phase) {
    push({.kind = StepEvent::Kind::Elementwise, .read = bytes / 2, .written = bytes / 2}, phase);
  }
  int call(Group group, Collective collective, double full, uint8_t phase, int peer = -1) {
    const auto size = static_cast<int64_t>(role.events.groups[group].ranks.size());
    push({.kind = StepEvent::Kind::Call,
          .collective = static_cast<uint8_t>(collective),
          .group = group,
          .peer = peer,
          .bytes = collective == Collective::Recv ? 0 : sent_bytes(collective, full, size)},
         phase);
    return calls_++;
  }
  void wait(int call) { push({.kind = StepEvent::Kind::Wait, .call = call}, kForward); }

  double chunk_parameters() const { return model_.block_parameters() * blocks_ / static_cast<double>(layout_.tensor); }
  int data_call(Collective collective, int) {
    const bool is_gather = collective == Collective::AllGather;
    return call(kData, collective,
                chunk_parameters() * (is_gather ? kParameterBytes : kGradientBytes) * layout_.exposed,
                is_gather ? kForward : kBackward);
  }

  void message(const schedule::PipelineOp& op) {
    const double bytes = static_cast<double>(tokens_ * model_.hidden * 2 / layout_.tensor);  // scattered over tensor
    const bool is_send = schedule::is_send(op.action);
    const int number = call(kPipeline, is_send ? Collective::Send : Collective::Recv, bytes, kForward, op.peer);
    if (!is_send) received_.push_back({op, number});
  }
  void wait_for(const schedule::PipelineOp& op) {
    const bool is_forward = op.action == schedule::Action::Forward;
    std::erase_if(received_, [&](const std::pair<schedule::PipelineOp, int>& one) {
      const bool is_input = one.first.micro_batch == op.micro_batch && one.first.chunk == op.chunk &&
                            is_forward == (one.first.action == schedule::Action::ReceiveForward);
      if (is_input) wait(one.second);
      return is_input;
    });
    const auto gathered = gathered_.find(op.chunk);
    if (gathered == gathered_.end()) return;
    wait(gathered->second);
    gathered_.erase(gathered);
  }

  /// Adds `share` of the products of the blocks of a chunk, `times` for each forward one.
  void block_products(double share, double times, uint8_t phase) {
    const int64_t h = model_.hidden, t = layout_.tensor;
    const uint8_t dtype = layout_.is_fp8 ? kFp8 : kBf16;
    const double count = blocks_ * share * times;
    product(count, tokens_, (h + 2 * model_.kv_hidden) / t, h, phase, dtype);
    product(count, tokens_, h, h / t, phase, dtype);
    product(count, tokens_, ffn_ / t, h, phase, dtype);
    product(count, tokens_, h, model_.inner / t, phase, dtype);
    if (layout_.is_fp8) casts(blocks_ * share, times > 1, phase);
  }
  /// Adds the casts of the factors of block_products(): inputs in forward, inputs and gradients of results in backward.
  /// Activations are cast before they are gathered over tensor ranks. Weights are cast as shards, which is little.
  void casts(double count, bool is_backward, uint8_t phase) {
    const int64_t h = model_.hidden, inputs = 3 * h + model_.inner;
    const int64_t results = is_backward ? 3 * h + 2 * model_.kv_hidden + ffn_ : 0;
    elementwise(count * kCastBytes * static_cast<double>(tokens_ * (inputs + results) / layout_.tensor), phase);
  }
  void block_rest(double share, double attention, double traffic, uint8_t phase) {
    const auto tokens = static_cast<double>(tokens_), t = static_cast<double>(layout_.tensor);
    const double pairs = tokens * static_cast<double>(model_.sequence) * (model_.causal ? 0.5 : 1);
    push({.kind = StepEvent::Kind::Attention,
          .dtype = kBf16,
          .operations = blocks_ * share * attention * 4 * pairs * static_cast<double>(model_.hidden) / t},
         phase);
    elementwise(blocks_ * share * traffic * tokens * 2 *
                    (kRowPasses * static_cast<double>(model_.hidden) + kInnerPasses * static_cast<double>(ffn_)) / t,
                phase);
  }
  void tensor_calls(double count, uint8_t phase) {
    if (layout_.tensor == 1) return;
    const double full = static_cast<double>(tokens_ * model_.hidden * 2) * blocks_ * count;
    wait(call(kTensor, Collective::AllReduce, full, phase));
  }
  /// Gathers the parameters of all blocks of a chunk while it computes. The first block's part is not hidden.
  int begin_gather(uint8_t phase) {
    const double full = chunk_parameters() * kParameterBytes;
    wait(call(kData, Collective::AllGather, full / blocks_, phase));
    return call(kData, Collective::AllGather, full * (1 - 1 / blocks_), phase);
  }
  bool is_last(const schedule::PipelineOp& op) const {
    return stage_ == layout_.pipeline - 1 && op.chunk == static_cast<int>(layout_.chunks) - 1;
  }
  void head(double times, uint8_t phase) {
    product(times, tokens_, model_.vocabulary / layout_.tensor, model_.hidden, phase);
    elementwise(times * kLogitBytes / 2 * static_cast<double>(tokens_ * model_.vocabulary / layout_.tensor), phase);
  }

  void forward(const schedule::PipelineOp& op) {
    const int gather = layout_.gathers_blocks ? begin_gather(kForward) : -1;
    block_products(1, 1, kForward);
    block_rest(1, 1, 1, kForward);
    tensor_calls(2, kForward);
    if (gather >= 0) wait(gather);
    if (is_last(op)) head(1, kForward);
  }
  void backward(const schedule::PipelineOp& op) {
    if (is_last(op)) head(2, kBackward);
    const int gather = layout_.gathers_blocks ? begin_gather(kBackward) : -1;
    if (layout_.recomputed > 0) {
      block_products(layout_.recomputed, 1, kBackward);
      block_rest(layout_.recomputed, 1, 1, kBackward);
      tensor_calls(2 * layout_.recomputed, kBackward);
    }
    block_products(1, 2, kBackward);
    block_rest(1, kAttentionBackward, 2, kBackward);
    tensor_calls(2, kBackward);
    if (gather >= 0) wait(gather);
    if (layout_.gathers_blocks) reduced_.push_back(data_call(Collective::ReduceScatter, op.chunk));
  }
  void finish() {
    if (!layout_.overlaps_data && !layout_.gathers_blocks)
      for (int chunk = 0; chunk < layout_.chunks; ++chunk)
        reduced_.push_back(data_call(Collective::ReduceScatter, chunk));
    for (const int number : reduced_) wait(number);
    const double owned = chunk_parameters() * static_cast<double>(layout_.chunks) / static_cast<double>(layout_.data);
    elementwise(owned * kUpdateBytes, StepEvent::kOptimizer);
    if (layout_.overlaps_data || layout_.gathers_blocks) return;
    for (int chunk = 0; chunk < layout_.chunks; ++chunk) wait(data_call(Collective::AllGather, chunk));
  }

  const PublishedModel& model_;
  const PublishedLayout& layout_;
  int64_t stage_, ffn_, tokens_ = 0;
  double blocks_ = 1;
  int calls_ = 0;
  std::vector<std::pair<schedule::PipelineOp, int>> received_;
  std::map<int, int> gathered_;
  std::vector<int> reduced_;
};

/// Returns a role for each pipeline stage. With several chunks the schedule is interleaved, otherwise 1F1B.
inline std::vector<Role> published_roles(const PublishedModel& model, const PublishedLayout& layout) {
  const schedule::Schedule plan = schedule::make_schedule({.name = layout.chunks > 1 ? "interleaved" : "1f1b",
                                                           .stages = static_cast<int>(layout.pipeline),
                                                           .micro_batches = static_cast<int>(layout.micro_batches),
                                                           .chunks = static_cast<int>(layout.chunks)});
  std::vector<Role> roles;
  for (int64_t stage = 0; stage < layout.pipeline; ++stage) {
    StageEvents events(model, layout, stage);
    events.build(plan.ranks[static_cast<size_t>(stage)]);
    roles.push_back(std::move(events.role));
  }
  return roles;
}

}  // namespace colossal::plan::test
