// The inputs of recomputed blocks in an offload store: gradients are the same, and no input remains in its old memory.
#include "colossal/memory/tiers/inputs_at.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "colossal/nn/recompute.h"
#include "support/temporary_folder.h"

namespace colossal::memory::inputs_at_test {
namespace {

using Steps = std::vector<std::string>;
using Tensors = std::vector<at::Tensor>;

/// Records the calls that it gets. Tensors are named "0", "1" and so on in the order of offload().
class HeardStore final : public OffloadStore {
 public:
  std::unique_ptr<OffloadedTensor> offload(const at::Tensor& tensor) override {
    const std::string name = std::to_string(count++);
    steps->push_back("offload " + name);
    return std::make_unique<Heard>(steps, name, tensor.clone());
  }
  struct Heard final : OffloadedTensor {
    Heard(std::shared_ptr<Steps> steps, std::string name, at::Tensor tensor)
        : steps(std::move(steps)), name(std::move(name)), tensor(std::move(tensor)) {}
    ~Heard() override { steps->push_back("end " + name); }
    int64_t bytes() const override { return static_cast<int64_t>(tensor.nbytes()); }
    void prefetch() override { steps->push_back("prefetch " + name); }
    at::Tensor borrow() override {
      steps->push_back("borrow " + name);
      return tensor;
    }
    void return_borrowed(const at::Tensor&, bool changed) override { EXPECT_FALSE(changed); }
    void discard() override { FAIL(); }
    void replace(const at::Tensor&) override { FAIL(); }
    std::shared_ptr<Steps> steps;
    std::string name;
    at::Tensor tensor;
  };
  std::shared_ptr<Steps> steps = std::make_shared<Steps>();
  int count = 0;
};

/// A chain of blocks x -> tanh(x W) whose inputs `store` stores; null = not offloaded.
struct Net {
  explicit Net(int blocks) {
    at::manual_seed(3);
    for (int i = 0; i < blocks; ++i) weights.push_back(at::randn({64, 64}).requires_grad_());
    x = at::randn({64, 64}).requires_grad_();
  }
  at::Tensor forward(nn::InputStore* store) {
    at::Tensor hidden = x;
    for (const at::Tensor& weight : weights) {
      const auto block = [weight](const Tensors& h) { return Tensors{at::tanh(h[0].matmul(weight))}; };
      hidden = nn::recomputed(block, {hidden}, store).front();
      hiddens.emplace_back(hidden.getIntrusivePtr());
    }
    return hidden.sum();
  }
  std::vector<at::Tensor> gradients() {
    std::vector<at::Tensor> all{x.grad().clone()};
    for (const at::Tensor& weight : weights) all.push_back(weight.grad().clone());
    return all;
  }
  void clear() {
    x.mutable_grad().reset();
    for (const at::Tensor& weight : weights) weight.mutable_grad().reset();
  }
  std::vector<at::Tensor> weights;
  at::Tensor x;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> hiddens;
};

TEST(InputsAt, PrefetchesTheInputsOfThePrecedingBlock) {
  const auto store = std::make_shared<HeardStore>();
  InputsAt inputs(store);
  Net net(3);
  const at::Tensor loss = net.forward(&inputs);
  EXPECT_EQ(*store->steps, (Steps{"offload 0", "offload 1", "offload 2"}));
  for (const auto& hidden : net.hiddens) EXPECT_TRUE(hidden.expired()) << "nobody holds what was kept elsewhere";
  store->steps->clear();
  loss.backward();
  EXPECT_EQ(*store->steps,
            (Steps{"borrow 2", "prefetch 1", "end 2", "borrow 1", "prefetch 0", "end 1", "borrow 0", "end 0"}));
}

/// Runs a chain of blocks that read two states and write both.
at::Tensor pairs(Tensors states, int blocks, nn::InputStore* store) {
  const auto block = [](const Tensors& s) { return Tensors{at::sin(s[0] + s[1]), s[0] * s[1]}; };
  for (int i = 0; i < blocks; ++i) states = store ? nn::recomputed(block, states, store) : block(states);
  return (states[0] + 2 * states[1]).sum();
}

TEST(InputsAt, StoresAndPrefetchesTheInputsOfABlockTogether) {
  const auto store = std::make_shared<HeardStore>();
  InputsAt inputs(store);
  at::manual_seed(4);
  const at::Tensor a = at::randn({3, 4}, at::kDouble).requires_grad_(), b = at::randn({3, 4}).to(at::kDouble);
  const at::Tensor same = a.detach().clone().requires_grad_();
  pairs({same, b}, 2, nullptr).backward();
  const at::Tensor loss = pairs({a, b}, 2, &inputs);
  EXPECT_EQ(*store->steps, (Steps{"offload 0", "offload 1", "offload 2", "offload 3"}));
  store->steps->clear();
  loss.backward();
  EXPECT_EQ(*store->steps, (Steps{"borrow 2", "borrow 3", "prefetch 0", "prefetch 1", "end 2", "end 3", "borrow 0",
                                  "borrow 1", "end 0", "end 1"}));
  EXPECT_TRUE(at::equal(a.grad(), same.grad()));
  EXPECT_FALSE(b.grad().defined()) << "it requires none";
}

TEST(InputsAt, EqualsRecomputationInMemory) {
  const test::TemporaryFolder folder;
  constexpr int64_t kInput = 64 * 64 * 4;
  for (const int64_t room : {3, 100}) {
    Net net(8);
    net.forward(nullptr).backward();
    const std::vector<at::Tensor> expected = net.gradients();
    const auto store = std::make_shared<TieredStore>(
        TieredStore::Options{.host_bytes = room * kInput, .disk = std::make_shared<DiskSpace>(folder.path())});
    InputsAt inputs(store);
    for (int step = 0; step < 3; ++step) {
      net.clear();
      store->begin_step();
      net.forward(&inputs).backward();
      store->end_step();
      const std::vector<at::Tensor> gradients = net.gradients();
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(gradients[i].equal(expected[i])) << i;
    }
    const TieredStore::Counts counts = store->counts();
    EXPECT_LE(counts.peak_host_bytes, room * kInput);
    EXPECT_EQ(counts.disk_bytes, 0) << "nothing is kept between steps";
    // At least the bytes that do not fit are written and read in each step, most of them ahead of use.
    if (room == 3) {
      EXPECT_GE(counts.bytes_written, 3 * (8 - room) * kInput);
      EXPECT_GE(counts.bytes_read, 3 * (8 - room) * kInput);
      EXPECT_GT(counts.reads_ahead, 0);
    } else {
      EXPECT_EQ(counts.bytes_written, 0);
    }
  }
}

TEST(InputsAt, FreesInputsAfterOneBackwardPassOrWithoutOne) {
  const auto store = std::make_shared<HeardStore>();
  InputsAt inputs(store);
  Net net(1);
  const at::Tensor loss = net.forward(&inputs);
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_THAT(
      [&] { loss.backward(); },
      testing::ThrowsMessage<Error>(testing::HasSubstr("available for one backward pass only: got a second one")));
  net.forward(&inputs);
  EXPECT_EQ(store->steps->back(), "end 1") << "a pass that nobody goes back through";
}

TEST(InputsAt, RefusesInputsThatCannotBeLoadedBack) {
  constexpr int64_t kInput = 64 * 64 * 4;
  const auto store = std::make_shared<HeardStore>();
  InputsAt small(store, kInput - 1);
  Net(2).forward(&small).backward();  // other ranks may join it
  EXPECT_THAT([&] { small.rethrow(); },
              testing::ThrowsMessage<Error>(
                  testing::AllOf(testing::HasSubstr("the input of a recomputed block takes 16.0 KiB"),
                                 testing::HasSubstr("\"16KiB\" per rank of this machine is the smallest that works"))));
  EXPECT_EQ(store->count, 0);
  small.rethrow();  // the error was already thrown
  InputsAt enough(store, kInput);
  Net(2).forward(&enough).backward();
  EXPECT_EQ(store->count, 2);
}

/// A store that fails to store tensors, or to return them.
struct BrokenStore final : OffloadStore {
  explicit BrokenStore(bool keeps) : keeps(keeps) {}
  std::unique_ptr<OffloadedTensor> offload(const at::Tensor&) override {
    require(keeps, "disk", "no room");
    struct Lost final : OffloadedTensor {
      int64_t bytes() const override { return 0; }
      at::Tensor borrow() override { throw Error("disk", "it is lost"); }
      void return_borrowed(const at::Tensor&, bool) override {}
      void discard() override {}
      void replace(const at::Tensor&) override {}
    };
    return std::make_unique<Lost>();
  }
  bool keeps;
};

// Other ranks go on to the next gather, so this rank must, too.
TEST(InputsAt, ThrowsErrorsAfterThePass) {
  Net whole(2);
  whole.forward(nullptr).backward();
  for (const bool keeps : {false, true}) {
    InputsAt inputs(std::make_shared<BrokenStore>(keeps));
    Net net(2);
    net.forward(&inputs).backward();
    EXPECT_EQ(at::equal(net.x.grad(), whole.x.grad()), !keeps) << "what could not leave is still there";
    if (keeps) {
      EXPECT_TRUE(net.x.grad().isnan().all().item<bool>());
    }
    EXPECT_THAT([&] { inputs.rethrow(); },
                testing::ThrowsMessage<Error>(testing::HasSubstr(keeps ? "it is lost" : "no room")));
    inputs.rethrow();
  }
}

TEST(InputsAt, ReturnsInputsInTheirLayout) {
  InputsAt inputs(std::make_shared<InPlace>());
  const at::Tensor rows = at::arange(12, at::kDouble).view({3, 4});
  for (const at::Tensor& x : {rows, rows.t(), rows.slice(1, 0, 4, 2), rows.narrow(0, 1, 1).expand({5, 4})}) {
    const at::Tensor back = inputs.offload({x})->take().front();
    EXPECT_TRUE(back.equal(x));
    if (x.is_non_overlapping_and_dense()) {
      EXPECT_EQ(back.strides(), x.strides());
    }
    EXPECT_FALSE(back.is_alias_of(rows));
  }
}

}  // namespace
}  // namespace colossal::memory::inputs_at_test
