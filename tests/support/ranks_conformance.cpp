#include "support/ranks_conformance.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/comm/group.h"
#include "support/ranks_values.h"

namespace colossal::test {
namespace {

using comm::Group;
using comm::Reduce;
using comm::Work;

void expect_bits(const at::Tensor& got, const at::Tensor& wanted, const std::string& what) {
  if (same_bits(got, wanted)) return;
  const bool comparable = got.sizes() == wanted.sizes() && got.numel() > 0;
  const at::Tensor differs = comparable ? (got.to(at::kDouble) != wanted.to(at::kDouble)).view(-1) : at::Tensor();
  const int64_t at = comparable && differs.any().item<bool>() ? differs.nonzero()[0].item<int64_t>() : -1;
  throw std::runtime_error(concat(what, ": got ", got.sizes(), " ", got.scalar_type(), ", wanted ", wanted.sizes(), " ",
                                  wanted.scalar_type(), "; first difference at ", at, at < 0 ? "" : ": got ",
                                  at < 0 ? 0 : got.view(-1)[at].item<double>(), " wanted ",
                                  at < 0 ? 0 : wanted.view(-1)[at].item<double>()));
}

std::vector<at::Tensor> everybodys(int n, int64_t numel, at::ScalarType dtype) {
  std::vector<at::Tensor> all;
  for (int r = 0; r < n; ++r) all.push_back(rank_values(r, numel, dtype));
  return all;
}

at::Tensor reduced(const std::vector<at::Tensor>& all, Reduce op) {
  const at::ScalarType dtype = all[0].scalar_type();
  at::Tensor result = all[0].to(at::kDouble);
  for (size_t r = 1; r < all.size(); ++r) {
    const at::Tensor x = all[r].to(at::kDouble);
    result = op == Reduce::Sum ? result + x : op == Reduce::Max ? at::maximum(result, x) : at::minimum(result, x);
  }
  return result.to(dtype);
}

std::string label(const Group& group, const char* what, int64_t numel, at::ScalarType dtype) {
  return concat(what, " of ", numel, " x ", c10::toString(dtype), " on rank ", group.rank(), " of ", group.size());
}

void check_dtype(Group& group, int64_t numel, at::ScalarType dtype) {
  const int n = group.size();
  for (Reduce op : {Reduce::Sum, Reduce::Max, Reduce::Min}) {
    at::Tensor x = rank_values(group.rank(), numel, dtype);
    group.all_reduce(x, op).wait();
    expect_bits(x, reduced(everybodys(n, numel, dtype), op), label(group, "all_reduce", numel, dtype));

    const at::Tensor in = rank_values(group.rank(), n * numel, dtype);
    at::Tensor out = at::empty({numel}, in.options());
    group.reduce_scatter(out, in, op).wait();
    const at::Tensor whole = reduced(everybodys(n, n * numel, dtype), op);
    expect_bits(out, whole.narrow(0, group.rank() * numel, numel), label(group, "reduce_scatter", numel, dtype));

    at::Tensor in_place = in.clone(), slice = in_place.narrow(0, group.rank() * numel, numel);
    group.reduce_scatter(slice, in_place, op).wait();
    expect_bits(slice, whole.narrow(0, group.rank() * numel, numel),
                label(group, "reduce_scatter in place", numel, dtype));

    const int root = n - 1;
    at::Tensor y = rank_values(group.rank(), numel, dtype);
    group.reduce(y, root, op).wait();
    if (group.rank() == root) {
      expect_bits(y, reduced(everybodys(n, numel, dtype), op), label(group, "reduce", numel, dtype));
    }
  }
  const at::Tensor in = rank_values(group.rank(), numel, dtype);
  at::Tensor out = at::empty({n * numel}, in.options());
  group.all_gather(out, in).wait();
  expect_bits(out, at::cat(everybodys(n, numel, dtype)), label(group, "all_gather", numel, dtype));
  at::Tensor in_place = at::empty_like(out), slice = in_place.narrow(0, group.rank() * numel, numel);
  slice.copy_(in);
  group.all_gather(in_place, slice).wait();
  expect_bits(in_place, out, label(group, "all_gather in place", numel, dtype));
}

}  // namespace

void check_every_dtype(Group& group, int64_t numel) {
  for (at::ScalarType dtype :
       {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kByte, at::kBool}) {
    check_dtype(group, numel, dtype);
  }
}

void check_every_collective(Group& group, int64_t numel) {
  const int n = group.size(), rank = group.rank();
  check_dtype(group, numel, at::kFloat);
  for (int root = 0; root < n; ++root) {
    at::Tensor x = rank_values(rank, numel, at::kFloat);
    group.broadcast(x, root).wait();
    expect_bits(x, rank_values(root, numel, at::kFloat), label(group, "broadcast", numel, at::kFloat));
  }
  // Even parts: rank s sends its part r to rank r.
  const at::Tensor in = rank_values(rank, n * numel, at::kFloat);
  at::Tensor out = at::empty_like(in);
  group.all_to_all(out, in, {}, {}).wait();
  std::vector<at::Tensor> parts;
  for (int r = 0; r < n; ++r) parts.push_back(rank_values(r, n * numel, at::kFloat).narrow(0, rank * numel, numel));
  expect_bits(out, at::cat(parts), label(group, "all_to_all", numel, at::kFloat));
  group.barrier().wait();
}

void check_uneven_exchange(Group& group) {
  const int n = group.size(), rank = group.rank();
  for (int64_t scale : {1, 9000}) {
    // Rank s sends (s + 2 r) mod 3 * scale rows of 3 elements to rank r; some send nothing.
    const auto rows = [&](int from, int to) { return (from + 2 * to) % 3 * scale; };
    const auto whole = [&](int from) {
      int64_t total = 0;
      for (int r = 0; r < n; ++r) total += rows(from, r);
      return rank_values(from, 3 * total, at::kLong).view({total, 3});
    };
    std::vector<int64_t> in_rows, out_rows;
    std::vector<at::Tensor> wanted;
    for (int r = 0; r < n; ++r) {
      in_rows.push_back(rows(rank, r));
      out_rows.push_back(rows(r, rank));
      int64_t begin = 0;
      for (int to = 0; to < rank; ++to) begin += rows(r, to);
      wanted.push_back(whole(r).narrow(0, begin, rows(r, rank)));
    }
    at::Tensor out = at::empty_like(at::cat(wanted));
    group.all_to_all(out, whole(rank), out_rows, in_rows).wait();
    expect_bits(out, at::cat(wanted), label(group, "uneven all_to_all", scale, at::kLong));
  }
}

void check_send_and_recv(Group& group, int64_t numel) {
  const int n = group.size(), rank = group.rank();
  if (n == 1) return;
  const int next = (rank + 1) % n, before = (rank + n - 1) % n;
  // Every rank first sends twice and then receives. Messages of a pair of ranks must arrive in order.
  const at::Tensor first = rank_values(rank, numel, at::kFloat), second = rank_values(rank + 1, numel, at::kInt);
  Work sent_first = group.send(first, next), sent_second = group.send(second, next);
  at::Tensor got_first = at::empty({numel}, at::kFloat), got_second = at::empty({numel}, at::kInt);
  group.recv(got_first, before).wait();
  group.recv(got_second, before).wait();
  sent_first.wait();
  sent_second.wait();
  expect_bits(got_first, rank_values(before, numel, at::kFloat), label(group, "recv", numel, at::kFloat));
  expect_bits(got_second, rank_values(before + 1, numel, at::kInt), label(group, "second recv", numel, at::kInt));
}

void check_issue_order(Group& group) {
  // Large and small collectives are issued without waiting in between, and waited for in reverse order.
  std::vector<at::Tensor> tensors;
  std::vector<Work> works;
  for (int64_t numel : {300000, 5, 100000, 1, 0, 200000}) {
    tensors.push_back(rank_values(group.rank(), numel, at::kFloat));
    works.push_back(group.all_reduce(tensors.back(), Reduce::Sum));
  }
  for (size_t i = works.size(); i-- > 0;) works[i].wait();
  for (const at::Tensor& x : tensors) {
    expect_bits(x, reduced(everybodys(group.size(), x.numel(), at::kFloat), Reduce::Sum), "issue order");
  }
}

namespace {

constexpr int64_t kPeriod = 1009;  // different values to add

/// Returns values of a rank whose sum over ranks depends on the order of summation.
at::Tensor values_to_add(int rank, at::ScalarType dtype) {
  const at::Tensor seeds = at::arange(kPeriod, at::kDouble) * 0.7310585 + rank * 1.6180339;
  return ((seeds * 43.75).sin() * at::exp(at::fmod(seeds, 5))).to(dtype);
}

/// Returns their sum, added up from rank 0 on; in fp32, rounded once, for narrower dtypes.
at::Tensor sum_in_rank_order(int ranks, at::ScalarType dtype) {
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor sum = values_to_add(0, dtype).to(wide);
  for (int r = 1; r < ranks; ++r) sum = sum + values_to_add(r, dtype).to(wide);
  return sum.to(dtype);
}

/// Returns `numel` elements that repeat `values`, from element `first` on.
at::Tensor repeated(const at::Tensor& values, int64_t numel, int64_t first = 0) {
  return values.repeat({(first + numel) / kPeriod + 1}).narrow(0, first, numel).clone();
}

}  // namespace

void check_sums_in_rank_order(Group& group, int64_t numel) {
  const int n = group.size();
  for (at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor own = values_to_add(group.rank(), dtype), sum = sum_in_rank_order(n, dtype);
    at::Tensor x = repeated(own, numel);
    group.all_reduce(x, Reduce::Sum).wait();
    expect_bits(x, repeated(sum, numel), label(group, "sum in rank order", numel, dtype));
    at::Tensor out = at::empty({numel}, x.options());
    group.reduce_scatter(out, repeated(own, n * numel), Reduce::Sum).wait();
    expect_bits(out, repeated(sum, numel, group.rank() * numel),
                label(group, "scattered sum in rank order", numel, dtype));
  }
}

void check_equal_bits_on_all_ranks(Group& group, int64_t numel) {
  for (at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    at::Tensor x = repeated(values_to_add(group.rank(), dtype), numel);
    at::Tensor out = at::empty({group.size() * numel}, x.options());
    group.all_reduce(x, Reduce::Sum).wait();
    group.all_gather(out, x).wait();
    for (int r = 0; r < group.size(); ++r) {
      expect_bits(out.narrow(0, r * numel, numel), x, label(group, "bits of the all_reduce", numel, dtype));
    }
  }
}

void check_transport(Group& group) {
  for (int64_t numel : {0, 1, 7, 1000, 40001}) check_every_dtype(group, numel);
  for (int64_t numel : {0, 3, 1025, 150001}) check_every_collective(group, numel);
  check_uneven_exchange(group);
  for (int64_t numel : {0, 5, 20000, 500000}) check_send_and_recv(group, numel);
  check_issue_order(group);
  for (int64_t numel : {17, 5000, 150001}) check_equal_bits_on_all_ranks(group, numel);
}

}  // namespace colossal::test
