#include "colossal/checkpoint/agreement.h"

#include <ATen/ATen.h>

#include <cstring>
#include <utility>

#include "colossal/base/foreign_error.h"
#include "colossal/comm/group.h"

namespace colossal::checkpoint {
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

}  // namespace

std::string broadcast_text(comm::Group& world, at::Device device, int root, const std::string& text) {
  at::Tensor length = at::full({1}, static_cast<int64_t>(text.size()), at::TensorOptions(at::kLong).device(device));
  world.broadcast(length, root).wait();
  at::Tensor bytes = at::zeros({length.item<int64_t>()}, at::kByte);
  if (world.rank() == root) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  bytes = bytes.to(device);
  world.broadcast(bytes, root).wait();
  bytes = bytes.cpu();
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

std::optional<Error> agreed_error(comm::Group& world, at::Device device, const std::function<void()>& work) {
  const Failure mine = run(work);
  // The maximum of n - rank over the failing ranks belongs to the lowest of them; 0: none failed.
  at::Tensor flag = at::full({1}, mine.component.empty() ? 0 : world.size() - world.rank(),
                             at::TensorOptions(at::kLong).device(device));
  world.all_reduce(flag, comm::Reduce::Max).wait();
  const int64_t failed = flag.item<int64_t>();
  if (failed == 0) return std::nullopt;
  if (world.size() == 1) return Error(mine.component, mine.message).mark_on_all_ranks();
  const int root = static_cast<int>(world.size() - failed);
  const std::string both =
      broadcast_text(world, device, root, mine.component + '\0' + with_rank(mine.message, world.rank(), world.size()));
  const size_t border = both.find('\0');
  return Error(both.substr(0, border), both.substr(border + 1)).mark_on_all_ranks();
}

void agree(comm::Group& world, at::Device device, const std::function<void()>& work) {
  if (const auto error = agreed_error(world, device, work)) throw *error;
}

}  // namespace colossal::checkpoint
