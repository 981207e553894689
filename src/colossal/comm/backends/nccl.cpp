#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "colossal/base/error.h"
#include "colossal/comm/backends/c10d.h"
#include "colossal/comm/backends/c10d_op.h"

namespace colossal::comm {
namespace {

using C10dWork = c10::intrusive_ptr<c10d::Work>;

/// Keeps the tensors alive while NCCL reads them on its own stream, until the caller's stream waits for that one.
/// After that, an event of the caller's stream shows whether the collective is complete. The work itself is not kept,
/// because c10d's work would keep the outputs alive for as long as the watchdog queries it.
class NcclWork : public Work::State {
 public:
  NcclWork(C10dWork work, std::vector<at::Tensor> kept, std::string group)
      : device_(kept.at(0).device().index()),
        work_(std::move(work)),
        kept_(std::move(kept)),
        group_(std::move(group)) {}

  void wait() override {
    const c10::Stream stream = c10::cuda::getCurrentCUDAStream(device_);
    C10dWork work;
    {
      const std::lock_guard lock(mutex_);
      if (passed_) return passed_->block(stream);
      work = work_;
    }
    try {
      // without the lock: with TORCH_NCCL_BLOCKING_WAIT this may take long, and the watchdog queries during that time
      work->wait();
      c10::Event passed(at::kCUDA);
      passed.record(stream);
      const std::lock_guard lock(mutex_);
      passed_.emplace(std::move(passed));
      work_.reset();
      kept_.clear();
    } catch (const std::exception& error) {
      throw Error("comm", concat("group \"", group_, "\": ", plain_message(error)));
    }
  }

  bool done() override {
    const std::lock_guard lock(mutex_);
    try {
      return passed_ ? passed_->query() : work_->isCompleted();
    } catch (const std::exception&) {
      return true;  // the device is broken: the next call on it reports the error
    }
  }

 private:
  const c10::DeviceIndex device_;
  std::mutex mutex_;
  C10dWork work_;
  std::vector<at::Tensor> kept_;
  std::optional<c10::Event> passed_;
  const std::string group_;
};

class NcclGroup : public Backend {
 public:
  NcclGroup(const NcclOptions& options, c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl)
      : name_(options.name), rank_(options.rank), size_(options.size), nccl_(std::move(nccl)) {}
  /// c10d's shutdown() lets peers finish with this rank's memory and may wait for them. After a failure of the run,
  /// peers may never arrive, so abort() is used.
  ~NcclGroup() override {
    try {
      if (reason_ || std::uncaught_exceptions() > exceptions_)
        nccl_->abort();
      else
        nccl_->shutdown();
    } catch (const std::exception&) {  // a broken device, whose error its user has already seen
    }
  }

  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Work issue(const Call& call) override;
  void abort(const std::string& reason) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      if (!reason_) reason_ = reason;
    }
    try {
      nccl_->abort();
    } catch (const std::exception&) {  // the group ends in any case
    }
  }

 private:
  C10dWork start(const Call& call, at::Tensor out, at::Tensor in);

  const std::string name_;
  const int rank_, size_, exceptions_ = std::uncaught_exceptions();
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl_;
  std::mutex mutex_;
  std::optional<std::string> reason_;
};

C10dWork NcclGroup::start(const Call& call, at::Tensor out, at::Tensor in) {
  const c10d::ReduceOp op = c10d_op(call.op);
  std::vector<at::Tensor> one{out.defined() ? out : in};
  switch (call.collective) {
    case Collective::AllReduce: {
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      return nccl_->allreduce(one, options);
    }
    case Collective::AllGather: {
      at::Tensor to = out.view(-1), from = in.view(-1);
      return nccl_->_allgather_base(to, from);
    }
    case Collective::ReduceScatter: {
      at::Tensor to = out.view(-1), from = in.view(-1);
      c10d::ReduceScatterOptions options;
      options.reduceOp = op;
      return nccl_->_reduce_scatter_base(to, from, options);
    }
    case Collective::AllToAll: {
      std::vector<int64_t> to_rows(call.out_rows.begin(), call.out_rows.end());
      std::vector<int64_t> from_rows(call.in_rows.begin(), call.in_rows.end());
      return nccl_->alltoall_base(out, in, to_rows, from_rows);
    }
    case Collective::Broadcast: {
      c10d::BroadcastOptions options;
      options.rootRank = call.peer;
      return nccl_->broadcast(one, options);
    }
    case Collective::Reduce: {
      c10d::ReduceOptions options;
      options.rootRank = call.peer;
      options.reduceOp = op;
      return nccl_->reduce(one, options);
    }
    case Collective::Send:
      return nccl_->send(one, call.peer, 0);
    case Collective::Recv:
      return nccl_->recv(one, call.peer, 0);
    case Collective::Barrier:
      break;  // barriers use the host group
  }
  throw Error("comm", concat("group \"", name_, "\": NCCL does not support ", to_string(call.collective)));
}

Work NcclGroup::issue(const Call& call) {
  check(*this, call);
  require(call.tensor() && call.tensor()->is_cuda(), "comm", "group \"", name_, "\": ", to_string(call.collective),
          " needs a GPU tensor with backend = \"nccl\"");
  {
    const std::lock_guard lock(mutex_);
    if (reason_) throw Error("comm", *reason_);
  }
  const at::Tensor out = call.out ? call.out->detach() : at::Tensor(), in = call.in ? call.in->detach() : at::Tensor();
  std::vector<at::Tensor> kept;
  if (out.defined()) kept.push_back(out);
  if (in.defined() && call.in != call.out) kept.push_back(in);
  try {
    return Work(std::make_shared<NcclWork>(start(call, out, in), std::move(kept), name_));
  } catch (const std::exception& error) {
    throw Error("comm", concat("group \"", name_, "\": ", plain_message(error)));
  }
}

}  // namespace

bool has_nccl() { return true; }

std::string pci_id_of_gpu(int index) {
  char id[32] = "";
  C10_CUDA_CHECK(cudaDeviceGetPCIBusId(id, sizeof(id), index));
  return id;
}

std::shared_ptr<Backend> make_nccl_group(const NcclOptions& options, std::shared_ptr<Store> store) {
  try {
    const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(options.device));
    const c10::cuda::CUDAGuard guard(device);
    auto nccl_options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    nccl_options->timeout = options.limit;
    nccl_options->group_name = options.name;
    for (int rank : options.world_ranks) nccl_options->global_ranks_in_group.push_back(static_cast<uint64_t>(rank));
    auto keys = c10::intrusive_ptr<c10d::Store>::reclaim_copy(store->c10d_store().get());
    auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(std::move(keys), options.rank, options.size, nccl_options);
    nccl->setBoundDeviceId(device);
    nccl->eagerConnectSingleDevice(device);
    return std::make_shared<NcclGroup>(options, std::move(nccl));
  } catch (const std::exception& error) {
    throw Error("comm", concat("group \"", options.name, "\": cannot connect its GPUs by NCCL: ", plain_message(error),
                               "; NCCL needs one GPU per rank: use fewer ranks, or backend = \"shm\""));
  }
}

}  // namespace colossal::comm
