#include "colossal/comm/agreement.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "colossal/base/checksum.h"
#include "colossal/base/foreign_error.h"
#include "colossal/comm/group.h"
#include "colossal/tensor/host_value.h"

namespace colossal::comm {
namespace {

struct Failure {
  std::string component, message;
};

Failure run(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const std::exception& any) {
    const Error error = as_error(any);
    return {error.component(), error.message()};
  }
}

at::Tensor length_of(const std::string& text, at::Device device) {
  return at::full({1}, static_cast<int64_t>(text.size()), at::TensorOptions(at::kLong).device(device));
}

at::Tensor as_bytes(const std::string& text, at::Device device) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), static_cast<char*>(bytes.mutable_data_ptr()));  // memcpy allows no null pointer,
                                                                                      // even for 0 bytes
  return bytes.to(device);
}

std::string text_of(const at::Tensor& bytes) {
  const at::Tensor here = bytes.cpu();
  return {static_cast<const char*>(here.const_data_ptr()), static_cast<size_t>(here.numel())};
}

}  // namespace

double sum(Group& ranks, double value) {
  at::Tensor total = at::full({1}, value, at::kDouble);
  ranks.all_reduce(total, Reduce::Sum).wait();
  return tensor::host_value(total);
}

std::string broadcast_text(Group& ranks, at::Device device, int root, const std::string& text) {
  at::Tensor length = length_of(text, device);
  ranks.broadcast(length, root).wait();
  at::Tensor bytes =
      ranks.rank() == root ? as_bytes(text, device) : at::zeros({length.item<int64_t>()}, at::kByte).to(device);
  ranks.broadcast(bytes, root).wait();
  return text_of(bytes);
}

std::vector<std::string> gather_text(Group& ranks, at::Device device, int root, const std::string& text) {
  at::Tensor length = length_of(text, device);
  if (ranks.rank() != root) {
    ranks.send(length, root).wait();
    ranks.send(as_bytes(text, device), root).wait();
    return {};
  }
  std::vector<std::string> texts;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (rank == root) {
      texts.push_back(text);
      continue;
    }
    ranks.recv(length, rank).wait();
    at::Tensor bytes = at::empty({length.item<int64_t>()}, at::TensorOptions(at::kByte).device(device));
    ranks.recv(bytes, rank).wait();
    texts.push_back(text_of(bytes));
  }
  return texts;
}

std::vector<std::string> all_gather_text(Group& ranks, at::Device device, const std::string& text) {
  if (ranks.size() == 1) return {text};
  at::Tensor lengths = at::empty({ranks.size()}, at::TensorOptions(at::kLong).device(device));
  ranks.all_gather(lengths, length_of(text, device).reshape({1})).wait();
  lengths = lengths.cpu();
  const auto longest = lengths.max().item<int64_t>();
  if (longest == 0) return std::vector<std::string>(static_cast<size_t>(ranks.size()));
  const at::Tensor padded = at::zeros({longest}, at::TensorOptions(at::kByte).device(device));
  if (!text.empty()) padded.narrow(0, 0, static_cast<int64_t>(text.size())).copy_(as_bytes(text, device));
  at::Tensor all = at::empty({ranks.size() * longest}, padded.options());
  ranks.all_gather(all, padded).wait();
  std::vector<std::string> texts;
  for (int rank = 0; rank < ranks.size(); ++rank)
    texts.push_back(text_of(all.narrow(0, rank * longest, lengths[rank].item<int64_t>())));
  return texts;
}

std::optional<Error> agreed_error(Group& ranks, at::Device device, const std::function<void()>& work) {
  const Failure mine = run(work);
  // The maximum of n - rank over the failing ranks belongs to the lowest of them; 0: none failed.
  at::Tensor flag = at::full({1}, mine.component.empty() ? 0 : ranks.size() - ranks.rank(),
                             at::TensorOptions(at::kLong).device(device));
  ranks.all_reduce(flag, Reduce::Max).wait();
  const int64_t failed = flag.item<int64_t>();
  if (failed == 0) return std::nullopt;
  if (ranks.size() == 1) return Error(mine.component, mine.message).mark_on_all_ranks();
  const int root = static_cast<int>(ranks.size() - failed);
  const std::string both =
      broadcast_text(ranks, device, root, mine.component + '\0' + with_rank(mine.message, ranks.rank(), ranks.size()));
  const size_t border = both.find('\0');
  return Error(both.substr(0, border), both.substr(border + 1)).mark_on_all_ranks();
}

void agree(Group& ranks, at::Device device, const std::function<void()>& work) {
  if (const auto error = agreed_error(ranks, device, work)) throw *error;
}

std::optional<TextDifference> find_difference(Group& ranks, at::Device device, const std::string& text) {
  const at::TensorOptions options = at::TensorOptions(at::kLong).device(device);
  // A digest has 62 bits, so that its negative fits as well. The maximum of -x is minus the minimum of x.
  const auto digest = static_cast<int64_t>(checksum_number(text.data(), text.size()) >> 2);
  at::Tensor range = at::tensor({digest, -digest}, at::kLong).to(device);
  ranks.all_reduce(range, Reduce::Max).wait();
  const at::Tensor here = range.cpu();
  if (here[0].item<int64_t>() == -here[1].item<int64_t>()) return std::nullopt;
  const std::string first = broadcast_text(ranks, device, 0, text);
  // The maximum of n - rank over the ranks that differ belongs to the lowest of them.
  at::Tensor flag = at::full({1}, text == first ? 0 : ranks.size() - ranks.rank(), options);
  ranks.all_reduce(flag, Reduce::Max).wait();
  const int rank = static_cast<int>(ranks.size() - flag.item<int64_t>());
  return TextDifference{rank, first, broadcast_text(ranks, device, rank, text)};
}

}  // namespace colossal::comm
