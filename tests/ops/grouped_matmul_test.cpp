#include "colossal/ops/products/grouped_matmul.h"

#include <ATen/Parallel.h>

#include <map>
#include <string>

#include "colossal/base/error.h"
#include "colossal/ops/parallel.h"
#include "colossal/tensor/flops.h"
#include "ops/compare.h"

namespace colossal::ops::grouped_matmul_test {
namespace {

struct Threads {
  int before = at::get_num_threads();
  explicit Threads(int n) { at::set_num_threads(n); }
  ~Threads() { at::set_num_threads(before); }
};

/// Group ends by what they are for.
const std::map<std::string, GroupEnds>& cases() {
  static const std::map<std::string, GroupEnds> all{
      {"uneven", {5, 12, 13, 43}},
      {"first, middle and last empty", {0, 0, 9, 9, 31, 31}},
      {"all rows in one", {0, 200, 200}},
      {"one row", {0, 0, 1, 1}},
      {"one group", {7}},
      {"no rows", {0, 0, 0}},
      {"one large group", {600}},  // computed without blocks
      {"more rows than a block, and than its depth", {1, 400, 401}},
  };
  return all;
}

int64_t begin_of(const GroupEnds& ends, size_t group) { return group == 0 ? 0 : ends[group - 1]; }
int64_t longest(const GroupEnds& ends) {
  int64_t rows = 1;
  for (size_t group = 0; group < ends.size(); ++group) rows = std::max(rows, ends[group] - begin_of(ends, group));
  return rows;
}

struct Expected {
  at::Tensor y, dx, dw, sums;  ///< fp64
};

Expected expected_of(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, const at::Tensor& dy,
                     const GroupEnds& ends) {
  Expected all{at::zeros({x.size(0), w.size(1)}, at::kDouble), at::zeros_like(x), at::zeros_like(w),
               at::zeros_like(bias)};
  for (size_t group = 0; group < ends.size(); ++group) {
    const auto e = static_cast<int64_t>(group);
    const int64_t from = begin_of(ends, group), rows = ends[group] - from;
    const at::Tensor in = x.narrow(0, from, rows), out = dy.narrow(0, from, rows);
    all.y.narrow(0, from, rows).copy_(at::mm(in, w[e].t()) + bias[e]);
    all.dx.narrow(0, from, rows).copy_(at::mm(out, w[e]));
    all.dw[e].copy_(at::mm(out.t(), in));
    all.sums[e].copy_(out.sum(0));
  }
  return all;
}

struct Operands {
  at::Tensor x, w, bias, dy;

  Operands(const GroupEnds& ends, int64_t n, int64_t k, at::ScalarType type) {
    const auto count = static_cast<int64_t>(ends.size());
    x = normal({ends.back(), k}, 1, type), w = normal({count, n, k}, 2, type);
    bias = normal({count, n}, 3, type), dy = normal({ends.back(), n}, 4, type);
  }
};

/// Compares the products with every instruction set, and the loops, whose products have tests of their own, with one.
void expect_products(const std::string& what, const GroupEnds& ends, int64_t n, int64_t k, at::ScalarType type) {
  const Operands exact(ends, n, k, type);
  const Expected expected = expected_of(exact.x, exact.w, exact.bias, exact.dy, ends);
  const at::Tensor x = exact.x.to(type), w = exact.w.to(type), bias = exact.bias.to(type), dy = exact.dy.to(type);
  const int64_t rows = longest(ends);
  for (const auto set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    const std::string which = std::string(name(set)) + ", " + at::toString(type) + ", " + what;
    expect_close(grouped_nt(x, w, ends, bias), expected.y, type, k + 1, which + ": nt");
    expect_close(grouped_nn(dy, w, ends), expected.dx, type, n, which + ": nn");
    expect_close(grouped_tn(dy, x, ends), expected.dw, type, rows, which + ": tn");
    expect_close(grouped_sums(dy, ends), expected.sums, type, rows, which + ": sums");
  }
  expect_close(looped_nt(x, w, ends, bias), expected.y, type, k + 1, what + ": loop, nt");
  expect_close(looped_nn(dy, w, ends), expected.dx, type, n, what + ": loop, nn");
  expect_close(looped_tn(dy, x, ends), expected.dw, type, rows, what + ": loop, tn");
}

// On one thread, because threads of many small products only wait for one another on busy cores. Tests below have
// several threads.
TEST(GroupedMatmul, EqualsALoopInDoublePrecision) {
  const Threads scope(1);
  for (const auto type : float_types())
    for (const auto& [what, ends] : cases())
      for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {37, 19}, {64, 128}})
        expect_products(what, ends, n, k, type);
}

// The sums of nt and nn are longer than the part of the depth that is copied at a time.
TEST(GroupedMatmul, AddsLongSums) {
  for (const auto type : float_types()) expect_products("long sums", {3, 3, 10}, 300, 290, type);
}

TEST(GroupedMatmul, HasTheBitsOfOneThreadOnSeveral) {
  const GroupEnds ends{40, 40, 47, 300, 301};
  for (const auto type : float_types()) {
    const Operands in(ends, 150, 70, type);
    const at::Tensor x = in.x.to(type), w = in.w.to(type), dy = in.dy.to(type);
    Tensors first;
    for (const int threads : {1, 2, 3}) {
      const Threads scope(threads);
      const Tensors now{grouped_nt(x, w, ends), grouped_nn(dy, w, ends), grouped_tn(dy, x, ends),
                        grouped_sums(dy, ends)};
      if (first.empty()) first = now;
      for (size_t i = 0; i < now.size(); ++i)
        EXPECT_TRUE(now[i].equal(first[i])) << type << ", " << threads << " threads, result " << i;
    }
  }
}

TEST(GroupedMatmul, RunsInsideAParallelLoop) {
  const Threads scope(2);
  const GroupEnds ends{40, 40, 47};
  const Operands in(ends, 150, 70, at::kDouble);
  const at::Tensor expected = grouped_nt(in.x, in.w, ends);
  Tensors results(2);
  parallel_for(0, 2, 1, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) results[static_cast<size_t>(i)] = grouped_nt(in.x, in.w, ends);
  });
  for (const at::Tensor& result : results) EXPECT_TRUE(result.equal(expected));
}

TEST(GroupedMatmul, GivesARowTheSameBitsBesideOthers) {
  const Operands in({100}, 150, 70, at::kFloat);
  const at::Tensor x = in.x.to(at::kFloat), w = in.w.to(at::kFloat), all = grouped_nt(x, w, {100});
  for (const int64_t row : {0, 5, 6, 99})
    EXPECT_TRUE(grouped_nt(x.narrow(0, row, 1), w, {1}).equal(all.narrow(0, row, 1))) << row;
}

TEST(GroupedMatmul, TakesAnyStrides) {
  const GroupEnds ends{4, 4, 30};
  const Operands in(ends, 50, 20, at::kDouble);
  const Expected expected = expected_of(in.x, in.w, in.bias, in.dy, ends);
  const auto apart = [](const at::Tensor& t) { return t.transpose(-2, -1).contiguous().transpose(-2, -1); };
  const auto wide_rows = [](const at::Tensor& t) { return at::cat({t, t}, 1).narrow(1, 0, t.size(1)); };
  for (const auto& change : std::vector<std::function<at::Tensor(const at::Tensor&)>>{apart, wide_rows}) {
    const at::Tensor x = change(in.x), dy = change(in.dy), w = change(in.w);
    expect_close(grouped_nt(x, w, ends, in.bias), expected.y, at::kDouble, 21, "nt");
    expect_close(grouped_nn(dy, w, ends), expected.dx, at::kDouble, 50, "nn");
    expect_close(grouped_tn(dy, x, ends), expected.dw, at::kDouble, 26, "tn");
    expect_close(grouped_sums(dy, ends), expected.sums, at::kDouble, 26, "sums");
  }
}

TEST(GroupedMatmul, AddsIntoASum) {
  for (const auto type : float_types())
    for (const auto sum_type : {type, at::kFloat})
      for (const GroupEnds& ends : {GroupEnds{0, 9, 9, 31}, GroupEnds{600}}) {
        if (type == at::kDouble && sum_type != type) continue;
        const Operands in(ends, 37, 19, type);
        const at::Tensor before = normal(in.w.sizes(), 5, sum_type), sum = before.to(sum_type);
        const at::Tensor expected = before + expected_of(in.x, in.w, in.bias, in.dy, ends).dw;
        EXPECT_TRUE(grouped_tn(in.dy.to(type), in.x.to(type), ends, sum).is_same(sum));
        // The product is rounded to the narrow dtype once before it is added, or not at all.
        expect_close(sum, expected, type, longest(ends) + 1, at::toString(type), roundoff_of(type) > 0 ? 1 : 0);
        EXPECT_TRUE(ends.front() != 0 || sum[0].equal(before[0].to(sum_type))) << "an empty group changes its sum";
      }
}

TEST(GroupedMatmul, PassesNotANumberOn) {
  const GroupEnds ends{2, 4};
  const Operands in(ends, 8, 8, at::kFloat);
  at::Tensor x = in.x.to(at::kFloat);
  x[3][2].fill_(std::nan(""));
  const at::Tensor y = grouped_nt(x, in.w.to(at::kFloat), ends);
  EXPECT_TRUE(y[3].isnan().all().item<bool>());
  EXPECT_FALSE(y.narrow(0, 0, 3).isnan().any().item<bool>());
}

TEST(GroupedMatmul, CountsTheOperationsOfRealRows) {
  for (const auto device : {at::kCPU, at::kMeta})
    for (const auto type : float_types())
      for (const GroupEnds& ends : {GroupEnds{0, 9, 9, 31}, GroupEnds{600}}) {
        const Operands in(ends, 37, 19, type);
        const auto there = at::TensorOptions(device).dtype(type);
        const at::Tensor x = in.x.to(there), w = in.w.to(there), dy = in.dy.to(there);
        const tensor::FlopCount count;
        grouped_nt(x, w, ends, in.bias.to(there));
        EXPECT_EQ(count.total(), 2. * static_cast<double>(ends.back()) * 37 * 19);
        grouped_nn(dy, w, ends);
        grouped_tn(dy, x, ends);
        grouped_sums(dy, ends);
        EXPECT_EQ(count.total(), 6. * static_cast<double>(ends.back()) * 37 * 19);
      }
}

TEST(GroupedMatmul, GivesSizesOfMetaTensors) {
  const GroupEnds ends{0, 9, 31};
  const auto meta = at::TensorOptions(at::kMeta).dtype(at::kBFloat16);
  const at::Tensor x = at::empty({31, 19}, meta), w = at::empty({3, 37, 19}, meta), dy = at::empty({31, 37}, meta);
  const auto expect_sizes = [](const at::Tensor& result, at::IntArrayRef sizes) {
    EXPECT_EQ(result.sizes(), sizes);
    EXPECT_TRUE(result.is_meta() && result.scalar_type() == at::kBFloat16);
  };
  expect_sizes(grouped_nt(x, w, ends, at::empty({3, 37}, meta)), {31, 37});
  expect_sizes(grouped_nn(dy, w, ends), {31, 19});
  expect_sizes(grouped_tn(dy, x, ends), {3, 37, 19});
  expect_sizes(grouped_sums(dy, ends), {3, 37});
}

void expect_error(const std::string& message, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "no error: " << message;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
  }
}

TEST(GroupedMatmul, RefusesSizesThatDoNotMatch) {
  const at::Tensor x = at::ones({5, 3}), w = at::ones({2, 4, 3}), dy = at::ones({5, 4});
  expect_error("the last end must be the number of rows: got 4 for 5 rows", [&] { grouped_nt(x, w, {2, 4}); });
  expect_error("the last end must be the number of rows: got 6 for 5 rows", [&] { grouped_sums(dy, {2, 6}); });
  expect_error("ends must not decrease: got 2 after 3 for group 1", [&] { grouped_tn(dy, x, {3, 2, 5}); });
  expect_error("ends must not decrease: got -1 after 0 for group 0", [&] { grouped_tn(dy, x, {-1, 5}); });
  expect_error("ends must have one entry for each matrix: got 1 for 2 matrices", [&] { grouped_nn(dy, w, {5}); });
  expect_error("rows must have as many columns as the matrices: got 4 for 3", [&] { grouped_nt(dy, w, {2, 5}); });
  expect_error("rows must have as many columns as the matrices: got 3 for 4", [&] { grouped_nn(x, w, {2, 5}); });
  expect_error("the matrices must be a stack [E, N, K]: got 2 dimensions", [&] { grouped_nt(x, w[0], {2, 5}); });
  expect_error("bias must be [2, 4]", [&] { grouped_nt(x, w, {2, 5}, at::ones({4})); });
  expect_error("sum must be [2, 4, 3]", [&] { grouped_tn(dy, x, {2, 5}, at::ones({2, 3, 4})); });
  expect_error("operands must have one dtype", [&] { grouped_nt(x, w.to(at::kDouble), {2, 5}); });
  expect_error("the last end must be the number of rows: got 4 for 5 rows",
               [&] { grouped_tn(dy, at::ones({4, 3}), {2, 4}); });
}

}  // namespace
}  // namespace colossal::ops::grouped_matmul_test
