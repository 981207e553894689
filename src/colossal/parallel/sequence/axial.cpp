// Dynamic axial parallelism: ranks have all weights and parts of the representations of a folding model. FastFold
// (arXiv:2203.00854) cuts them so, too; its gathers drop the gradients of other ranks, and its "incoming" products
// switch twice where these sum over their own k.
//
// Communication: see nn::AxialRanks. With overlap, a switch that begins goes on beside the work of the rank, on a
//                channel of its own.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <numeric>

#include "colossal/comm/collectives.h"
#include "colossal/comm/group.h"
#include "colossal/nn/axial_ranks.h"
#include "colossal/parallel/sequence/modes.h"
#include "colossal/parallel/sequence/rings.h"
#include "colossal/parallel/sequence/split_switch.h"
#include "colossal/parallel/tensor/layout.h"

namespace colossal::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// An exchange in progress. Its tensors live until it has arrived.
struct Flight {
  void begin(at::Tensor given, int64_t elements, const std::vector<int64_t>& out, const std::vector<int64_t>& in,
             comm::Group& group) {
    sent = std::move(given);
    arriving = at::empty({elements}, sent.options());
    work = group.all_to_all(arriving, sent, out, in);
  }
  at::Tensor arrived() {
    work.wait();
    sent = at::Tensor();
    return std::move(arriving);
  }

  at::Tensor sent, arriving;
  comm::Work work;
};

/// Both directions of a switch.
struct TwoFlights : torch::CustomClassHolder {
  TwoFlights(SplitSwitch exchange, comm::Group& group) : exchange(std::move(exchange)), group(group) {}
  SplitSwitch exchange;
  comm::Group& group;
  Flight there, back;
};

TwoFlights& flights_of(AutogradContext* context) {
  const auto capsule = context->saved_data["flights"].toCapsule();
  return static_cast<TwoFlights&>(*capsule);
}

/// Begins an exchange. Its backward waits for the opposite one, which Arrive's backward began: what it is given has
/// the sizes of a gradient, and nobody reads it.
struct Depart : Function<Depart> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& packed,
                            const c10::intrusive_ptr<TwoFlights>& flights) {
    const SplitSwitch& exchange = flights->exchange;
    flights->there.begin(packed.contiguous(), exchange.elements(), exchange.received(), exchange.sent(),
                         flights->group);
    context->saved_data["flights"] = c10::IValue::make_capsule(flights);
    return at::empty({1}, packed.options()).expand({exchange.elements()});
  }
  static variable_list backward(AutogradContext* context, variable_list) {
    return {flights_of(context).back.arrived(), at::Tensor()};
  }
};

struct Arrive : Function<Arrive> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor&,
                            const c10::intrusive_ptr<TwoFlights>& flights) {
    context->saved_data["flights"] = c10::IValue::make_capsule(flights);
    return flights->there.arrived();
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    TwoFlights& flights = flights_of(context);
    const std::vector<int64_t>&out = flights.exchange.sent(), &in = flights.exchange.received();
    flights.back.begin(grads[0].contiguous(), std::accumulate(out.begin(), out.end(), int64_t{0}), out, in,
                       flights.group);
    return {grads[0], at::Tensor()};
  }
};

class OverlappedSwitch final : public nn::PendingSwitch {
 public:
  OverlappedSwitch(const at::Tensor& x, const nn::Axis& from, const nn::Axis& to, comm::Group& group)
      : flights_(c10::make_intrusive<TwoFlights>(SplitSwitch(x, from, to, group), group)),
        departed_(Depart::apply(flights_->exchange.packed(x), flights_)) {}

  at::Tensor wait() override { return flights_->exchange.unpacked(Arrive::apply(departed_, flights_)); }

 private:
  c10::intrusive_ptr<TwoFlights> flights_;
  at::Tensor departed_;
};

class GroupAxialRanks final : public nn::AxialRanks {
 public:
  GroupAxialRanks(comm::Mesh& mesh, bool overlap)
      : ranks_(mesh.channel("sequence", "attention")),
        beside_(overlap ? &mesh.channel("sequence", "alignment") : nullptr),
        ring_(ring_along(mesh, "sequence")) {}

  int64_t size() const override { return ranks_.size(); }
  int64_t rank() const override { return ranks_.rank(); }

  at::Tensor gathered(const at::Tensor& own, int64_t dim, int64_t whole) const override {
    return comm::gathered_parts(own, dim, nn::near_even_cut(whole, size()).lengths, ranks_);
  }
  at::Tensor summed_part(const at::Tensor& partial, int64_t dim) const override {
    return comm::scattered_parts(partial, dim, nn::near_even_cut(partial.size(dim), size()).lengths, ranks_);
  }
  at::Tensor total(const at::Tensor& partial) const override { return comm::reduce_from(partial, ranks_); }
  at::Tensor switched(const at::Tensor& x, const nn::Axis& from, const nn::Axis& to) const override {
    return switched_split(x, from, to, ranks_);
  }
  std::unique_ptr<nn::PendingSwitch> begin_switch(const at::Tensor& x, const nn::Axis& from,
                                                  const nn::Axis& to) const override {
    if (!beside_) return AxialRanks::begin_switch(x, from, to);
    return std::make_unique<OverlappedSwitch>(x, from, to, *beside_);
  }

  void each_piece(const at::Tensor& own, int64_t dim, const std::vector<int64_t>& lengths,
                  const std::function<void(const at::Tensor&, int64_t)>& use) const override {
    at::Tensor piece = own.contiguous();
    std::vector<int64_t> sizes = own.sizes().vec();
    for (int step = 0; step < ring_.size; ++step) {
      comm::Work sending, receiving;
      at::Tensor next;
      if (step + 1 < ring_.size) {
        sizes[static_cast<size_t>(dim)] = lengths[static_cast<size_t>(ring_.source(step + 1))];
        next = at::empty(sizes, own.options());
        if (piece.numel() > 0) sending = ring_.send(piece);
        if (next.numel() > 0) receiving = ring_.receive(next);
      }
      use(piece, ring_.source(step));
      sending.wait(), receiving.wait();
      piece = next;
    }
  }

  // The sum of rank q's piece begins on the rank after q, passes each rank once, and ends on q.
  at::Tensor sum_of_pieces(const std::vector<int64_t>& lengths,
                           const std::function<at::Tensor(int64_t)>& make) const override {
    at::Tensor sum, sent;
    comm::Work sending;
    for (int step = 0; step < ring_.size; ++step) {
      const int target = ring_.source(step + 1);
      if (lengths[static_cast<size_t>(target)] == 0) {
        sum = make(target);
        continue;
      }
      at::Tensor own = make(target);
      if (step > 0) {
        at::Tensor arrived = at::empty_like(own);
        ring_.receive(arrived).wait();
        own.add_(arrived);
      }
      sending.wait();
      sum = sent = own;
      if (step + 1 < ring_.size) sending = ring_.send(sent);
    }
    sending.wait();
    return sum;
  }

 private:
  comm::Group& ranks_;
  comm::Group* beside_;  // null = switches do not overlap with work
  RingOfRanks ring_;
};

}  // namespace

Layout SequenceAxial::layout(Layout layout, const SequenceConfig& config) {
  layout.axial_ranks = std::make_shared<const GroupAxialRanks>(*layout.mesh, config.overlap);
  layout.cut = [ranks = config.size](int64_t tokens, const nn::ForwardContext&) {
    return nn::near_even_cut(tokens, ranks);
  };
  return layout;
}

}  // namespace colossal::parallel
