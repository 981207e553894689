#include "colossal/parallel/data/chunk_gradients.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>
#include <vector>

#include "colossal/memory/account.h"
#include "colossal/memory/chunk_plan.h"
#include "colossal/ops/reduce.h"

namespace colossal::parallel {
namespace {

using memory::Slot;

at::Tensor slice_of(const at::Tensor& part, const memory::Segment& segment) {
  return part.narrow(0, segment.first, segment.length);
}

/// Returns the sum of squares, [] in fp64.
at::Tensor sum_of_squares(const at::Tensor& x) {
  return at::linalg_vector_norm(x, 2, at::OptionalIntArrayRef(), false, at::kDouble).square();
}

/// Returns zeros for a sum of rows that are of the sizes and dtype of `like`.
at::Tensor zeros_for_rows(const at::Tensor& like) {
  return at::zeros(like.sizes(), like.options().dtype(at::promote_types(like.scalar_type(), at::kFloat)));
}

void sum_over(const std::vector<comm::Group*>& groups, at::Tensor& sum) {
  for (comm::Group* group : groups) group->all_reduce(sum, comm::Reduce::Sum).wait();
}

/// Gradients that exist as a whole throughout the run.
class WholeGradients final : public ChunkGradients {
 public:
  WholeGradients(bool states_shared, const memory::Chunk& chunk, std::span<const memory::Shard> shards,
                 Summands summands, const GradientOptions& options)
      : states_shared_(states_shared),
        chunk_(chunk),
        summands_(std::move(summands)),
        is_view_(chunk.options().dtype() == options.sums) {
    const memory::KindScope kind(memory::Kind::Gradients);
    whole_ = at::zeros({chunk.length()}, chunk.options().dtype(options.sums));
    part_ = part_of(whole_);
    for (size_t i = 0; i < shards.size(); ++i) shards[i].set_whole_gradients(slice_of(part_, chunk.segments()[i]));
    if (is_view_) attach();
  }

  void zero() override {
    ops::zero_(whole_);
    is_sum_ = false;
    further_.reset(), sent_further_.reset(), rows_.reset();
    if (std::exchange(is_sent_, false) && is_view_) attach();
    if (is_view_) return;
    for (const Slot& slot : chunk_.slots()) slot.parameter->value.mutable_grad().reset();
  }

  void add_to_sum() override {
    if (!std::exchange(is_sum_, false)) return;
    const at::NoGradGuard no_grad;
    const bool is_first = std::all_of(summands_.further.begin(), summands_.further.end(),
                                      [](const comm::Group* group) { return group->rank() == 0; });
    if (!states_shared_) {
      if (!is_first) ops::zero_(whole_);
      return;
    }
    // Outside of this rank's shard are the summands that this rank sent to the others.
    const int64_t begin = chunk_.part_begin(), end = begin + chunk_.part_length();
    whole_.narrow(0, 0, begin).zero_();
    whole_.narrow(0, end, chunk_.length() - end).zero_();
    if (!is_first) part_.zero_();
  }

  void take(size_t index) override {
    const Slot& slot = chunk_.slots()[index];
    const at::Tensor gradient = slot.parameter->value.grad();
    if ((is_view_ && !is_sent_) || !gradient.defined()) return;
    const at::NoGradGuard no_grad;
    if (is_sent_ && !further_.defined()) further_ = at::zeros_like(whole_);
    view_of_slot(is_sent_ ? further_ : whole_, slot).add_(gradient);
    slot.parameter->value.mutable_grad().reset();
  }

  void send() override {
    const at::NoGradGuard no_grad;
    const memory::KindScope kind(memory::Kind::Gradients);
    const auto& compression = summands_.compression;
    if (!std::exchange(is_sent_, true) && is_view_)  // autograd must not add to what is summed
      for (const Slot& slot : chunk_.slots()) slot.parameter->value.mutable_grad().reset();
    if (further_.defined()) sent_further_ = std::exchange(further_, {});
    at::Tensor sent = sent_further_.defined() ? sent_further_ : whole_, part = part_of(sent);
    if (states_shared_)
      work_ = compression ? comm::compressed_reduce_scatter(part, sent, *summands_.sharers, *compression)
                          : summands_.sharers->reduce_scatter(part, sent, comm::Reduce::Sum);
    else if (compression && !summands_.further.empty())
      comm::compressed_all_reduce(sent, *summands_.further.front(), *compression);
    else if (!summands_.further.empty())
      work_ = summands_.further.front()->all_reduce(sent, comm::Reduce::Sum);
  }

  void receive() override {
    const at::NoGradGuard no_grad;
    const memory::KindScope kind(memory::Kind::Gradients);
    work_.wait();
    std::vector<comm::Group*> rest = summands_.further;
    if (!states_shared_ && !rest.empty()) rest.erase(rest.begin());
    const at::Tensor received = sent_further_.defined() ? std::exchange(sent_further_, {}) : whole_;
    at::Tensor sum = states_shared_ ? part_of(received) : received;
    sum_over(rest, sum);
    if (!received.is_same(whole_)) (states_shared_ ? part_ : whole_).add_(sum);
    is_sum_ = true;
  }
  void keep(bool) override {}  // the sum is already in its final place

  void end_pass() override {
    if (std::exchange(is_sent_, false) && is_view_) attach();
  }

  void begin_rows() override {
    const memory::KindScope kind(memory::Kind::Gradients);
    rows_ = zeros_for_rows(whole_);
    keep_row(1);  // the sum of earlier passes
  }
  at::Tensor row_squares(comm::Group* tokens) override {
    const at::NoGradGuard no_grad;
    if (tokens) tokens->all_reduce(whole_, comm::Reduce::Sum).wait();
    return sum_of_squares(whole_);
  }
  void keep_row(double factor) override {
    const at::NoGradGuard no_grad;
    rows_.add_(whole_, factor);
    ops::zero_(whole_);
  }
  void take_rows() override {
    const at::NoGradGuard no_grad;
    whole_.copy_(std::exchange(rows_, {}));
  }

  bool are_in_place() const override { return is_view_; }

 private:
  void attach() {
    for (const Slot& slot : chunk_.slots()) slot.parameter->value.mutable_grad() = view_of_slot(whole_, slot);
  }
  at::Tensor part_of(const at::Tensor& whole) const {
    return whole.narrow(0, chunk_.part_begin(), chunk_.part_length());
  }

  bool states_shared_;
  const memory::Chunk& chunk_;
  Summands summands_;
  bool is_view_;          // true if gradients of parameters are views of whole_
  bool is_sum_ = false;   // true if whole_ has the sum of this step over all ranks
  bool is_sent_ = false;  // send() was called in this pass
  at::Tensor whole_, part_;
  at::Tensor further_, sent_further_;  // gradients after send(), and those under way; else undefined
  at::Tensor rows_;                    // sum of rows; defined from begin_rows() to take_rows()
  comm::Work work_;
};

/// Gradients that the first gradient of a pass allocates and the reduction frees, except for this rank's shard.
class PartGradients final : public ChunkGradients {
 public:
  PartGradients(const memory::ChunkOptions& store, const memory::Chunk& chunk, std::span<const memory::Shard> shards,
                Summands summands, const GradientOptions& options)
      : offload_(store.offload),
        segment_(memory::segment_length(chunk.length(), store.capacity)),
        chunk_(chunk),
        shards_(shards.begin(), shards.end()),
        summands_(std::move(summands)),
        options_(options),
        filled_(chunk.slots().size(), false) {}

  void zero() override {
    whole_.reset();
    sent_.reset();
    received_.reset();
    failure_ = nullptr;
    rows_.reset();
    is_complete_ = false;
    if (std::exchange(is_aside_, false))
      for (const auto& offloaded : aside_) offloaded->discard();
    for (const memory::Shard& shard : shards_) shard.drop_gradients();
    std::fill(filled_.begin(), filled_.end(), false);
    for (const Slot& slot : chunk_.slots()) slot.parameter->value.mutable_grad().reset();
  }

  void take(size_t index) override {
    const Slot& slot = chunk_.slots()[index];
    const at::Tensor gradient = slot.parameter->value.grad();
    if (!gradient.defined()) return;
    const at::NoGradGuard no_grad;
    const memory::KindScope kind(memory::Kind::Gradients);
    begin_whole();
    const at::Tensor sum = view_of_slot(whole_, slot);
    if (filled_[index])
      sum.add_(gradient);
    else
      sum.copy_(gradient);
    filled_[index] = true;
    slot.parameter->value.mutable_grad().reset();
  }

  void set_aside() override {
    if (!offload_ || !whole_.defined()) return;
    const at::NoGradGuard no_grad;
    for (size_t i = 0; segment_begin(i) < chunk_.length(); ++i) {
      if (i == aside_.size())
        aside_.push_back(offload_->offload(segment_of_whole(i)));
      else
        aside_[i]->replace(segment_of_whole(i));
    }
    whole_.reset();
    is_aside_ = true;
  }

  int64_t bytes_returned() const override { return bytes_returned_; }

  void send() override {
    const at::NoGradGuard no_grad;
    const memory::KindScope kind(memory::Kind::Gradients);
    begin_whole();
    clear_gaps();
    sent_ = std::exchange(whole_, {});
    std::fill(filled_.begin(), filled_.end(), false);
    if (summands_.sharers->size() == 1) {  // its shard is the whole chunk
      received_ = sent_;
      return;
    }
    received_ = at::empty({chunk_.part_length()}, sent_.options());
    const auto& compression = summands_.compression;
    work_ = compression ? comm::compressed_reduce_scatter(received_, sent_, *summands_.sharers, *compression)
                        : summands_.sharers->reduce_scatter(received_, sent_, comm::Reduce::Sum);
  }

  void receive() override {
    const at::NoGradGuard no_grad;
    const memory::KindScope kind(memory::Kind::Gradients);
    work_.wait();
    sum_over(summands_.further, received_);
    sent_.reset();
  }

  void keep(bool last) override {
    const at::NoGradGuard no_grad;
    const memory::KindScope kind(memory::Kind::Gradients);
    const at::Tensor received = std::exchange(received_, {});
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    if (last && offload_) make_way();
    is_complete_ = true;
    if (shards_.front().options().device() == received.device())
      add_here(received);
    else  // a copy to the shards' device, for which no stream waits
      for (size_t i = 0; i < shards_.size(); ++i)
        shards_[i].add_gradients(slice_of(received, chunk_.segments()[i]), options_.sums);
  }

  void complete() override {
    if (std::exchange(is_complete_, true)) return;
    const memory::KindScope kind(memory::Kind::Gradients);
    memory::for_leases(shards_, {.gradients = memory::Access::Write}, [&](size_t i, memory::Resident& shard) {
      if (!shard.gradients.defined())
        shard.gradients = at::zeros({shards_[i].length()}, shards_[i].options().dtype(options_.sums));
    });
    if (!offload_) return;
    for (const memory::Shard& shard : shards_) shard.drop_gradients_after_update();
  }

  void begin_rows() override { rows_.reset(); }
  at::Tensor row_squares(comm::Group* tokens) override {
    const at::NoGradGuard no_grad;
    const memory::KindScope kind(memory::Kind::Gradients);
    begin_whole();
    clear_gaps();
    if (tokens) tokens->all_reduce(whole_, comm::Reduce::Sum).wait();
    return sum_of_squares(whole_);
  }
  void keep_row(double factor) override {
    const at::NoGradGuard no_grad;
    const memory::KindScope kind(memory::Kind::Gradients);
    if (!rows_.defined()) rows_ = zeros_for_rows(whole_);
    rows_.add_(whole_, factor);
    whole_.reset();
    std::fill(filled_.begin(), filled_.end(), false);
  }
  void take_rows() override {
    const at::NoGradGuard no_grad;
    const memory::KindScope kind(memory::Kind::Gradients);
    begin_whole();
    whole_.copy_(std::exchange(rows_, {}));
    std::fill(filled_.begin(), filled_.end(), true);
  }

  bool are_in_place() const override { return false; }

 private:
  int64_t segment_begin(size_t i) const { return static_cast<int64_t>(i) * segment_; }
  at::Tensor segment_of_whole(size_t i) const {
    return whole_.narrow(0, segment_begin(i), std::min(segment_, chunk_.length() - segment_begin(i)));
  }

  /// Allocates whole_ and restores gradients that were set aside.
  void begin_whole() {
    if (whole_.defined()) return;
    whole_ = at::empty({chunk_.length()}, message_options());
    if (!std::exchange(is_aside_, false)) return;
    try {
      for (size_t i = 0; i < aside_.size(); ++i) {
        aside_[i]->copy_to(segment_of_whole(i));
        aside_[i]->discard();
      }
    } catch (...) {  // the other ranks proceed to the reduce_scatter, so this rank must join it
      failure_ = std::current_exception();
      whole_.fill_(std::numeric_limits<double>::quiet_NaN());
    }
    bytes_returned_ += static_cast<int64_t>(whole_.nbytes());
  }

  at::TensorOptions message_options() const {
    const at::TensorOptions of_values = chunk_.options();
    return options_.each_pass ? of_values : of_values.dtype(options_.sums);
  }

  void add_here(const at::Tensor& sum) {
    memory::for_leases(shards_, {.gradients = memory::Access::Write}, [&](size_t i, memory::Resident& shard) {
      const at::Tensor received = slice_of(sum, chunk_.segments()[i]);
      if (shard.gradients.defined())
        shard.gradients.add_(received);
      else
        shard.gradients = received.to(options_.sums);
    });
  }

  /// Frees the parameters of this chunk before the update, which recomputes them from the master weights and hardly
  /// reads them.
  void make_way() {
    // A gather in progress reads the parameters, unless it reads a copy that was assembled from several segments.
    const bool is_read = chunk_.state() == memory::Chunk::State::Gathering && shards_.size() == 1;
    for (const memory::Shard& shard : shards_) {
      shard.drop_gradients_after_update();
      if (!chunk_.stays() && !is_read) shard.drop_copy();
    }
  }

  /// Sets everything to zero for which no gradient arrived, padding included.
  void clear_gaps() {
    int64_t end = 0;
    for (size_t i = 0; i < filled_.size(); ++i) {
      const Slot& slot = chunk_.slots()[i];
      if (!filled_[i]) whole_.narrow(0, slot.offset, slot.size).zero_();
      end = slot.offset + slot.size;
    }
    whole_.narrow(0, end, chunk_.length() - end).zero_();
  }

  std::shared_ptr<memory::OffloadStore> offload_;  // null: gradients stay in place
  int64_t segment_;                                // elements of each segment except the last
  std::vector<std::unique_ptr<memory::OffloadedTensor>> aside_;
  bool is_complete_ = false;  // true if the shards have gradients
  bool is_aside_ = false;     // true if aside_ holds the gradients and whole_ is undefined
  int64_t bytes_returned_ = 0;
  std::exception_ptr failure_;  // reason why whole_ is NaN
  const memory::Chunk& chunk_;
  std::vector<memory::Shard> shards_;
  Summands summands_;
  GradientOptions options_;
  at::Tensor rows_;  // sum of rows; defined from the first keep_row() to take_rows()
  // Defined only between the first gradient of a pass and its sum; sent_ = whole gradients under way
  at::Tensor whole_, sent_, received_;
  std::vector<bool> filled_;  // true if whole_ has a gradient of that slot
  comm::Work work_;
};

}  // namespace

Summands Summands::of(memory::ChunkStore& store, const memory::Chunk& chunk) {
  comm::Mesh& mesh = store.mesh();
  const tensor::ShardSpec& spec = chunk.slots().front().parameter->spec;
  const std::vector<std::string> replicas = tensor::replicas(spec, mesh.coordinates());
  const int sharers = chunk.sharers().size(), count = mesh.coordinates().size(replicas);
  Summands s{&chunk.sharers()};
  std::vector<std::string> axes = spec.gradient_axes;
  if (sharers > 1)
    std::erase_if(
        axes, [&](const auto& axis) { return std::find(replicas.begin(), replicas.end(), axis) != replicas.end(); });
  if (spec.stages.size() > 1)
    s.further.push_back(&mesh.among(axes, "pipeline", spec.stages));
  else if (!axes.empty())
    s.further.push_back(&mesh.group(axes));
  if (sharers > 1 && sharers < count) s.further.push_back(&mesh.counterparts(replicas, sharers));
  std::erase_if(s.further, [](const comm::Group* group) { return group->size() == 1; });
  if (count > 1) s.compression = store.options().compression;
  return s;
}

std::unique_ptr<ChunkGradients> make_chunk_gradients(const memory::ChunkOptions& store, const memory::Chunk& chunk,
                                                     std::span<const memory::Shard> shards, Summands summands,
                                                     const GradientOptions& options) {
  if (store.sharing.gradients)
    return std::make_unique<PartGradients>(store, chunk, shards, std::move(summands), options);
  return std::make_unique<WholeGradients>(store.sharing.states, chunk, shards, std::move(summands), options);
}

}  // namespace colossal::parallel
