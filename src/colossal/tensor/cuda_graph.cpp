#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "colossal/tensor/graph.h"

namespace colossal::tensor {
namespace {

/// Makes stream `later` wait for all work queued on stream `earlier` so far.
void order(const c10::Stream& earlier, const c10::Stream& later) {
  c10::Event event(c10::DeviceType::CUDA);
  event.record(earlier);
  event.block(later);
}

class CudaGraph final : public Graph {
 public:
  CudaGraph(c10::Device device, const std::function<void()>& body) : device_(device) {
    const c10::cuda::CUDAGuard guard(device);
    const c10::cuda::CUDAStream here = c10::cuda::getCurrentCUDAStream(device.index());
    // CUDA cannot capture the legacy default stream, with which all others synchronize, so capture on a stream of the
    // pool. Backward passes run on the streams of their forward passes.
    const c10::cuda::CUDAStream aside = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
    order(here, aside);
    {
      const c10::cuda::CUDAStreamGuard on(aside);
      // Restricts the checks to this thread, because other threads may pin memory for the next batch or query an NCCL
      // event during the capture.
      graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
      try {
        body();
      } catch (...) {
        abandon();
        throw;
      }
      graph_.capture_end();
    }
    order(aside, here);
  }

  void replay() override {
    const c10::cuda::CUDAGuard guard(device_);
    graph_.replay();
  }

 private:
  /// Ends a capture that will never be replayed, because its stream would otherwise refuse all later work.
  void abandon() noexcept {
    try {
      graph_.capture_end();
    } catch (...) {  // CUDA has ended the capture already, and the first error is being propagated
    }
  }

  c10::Device device_;
  at::cuda::CUDAGraph graph_;
};

std::unique_ptr<Graph> capture_on_cuda(c10::Device device, const std::function<void()>& body) {
  return std::make_unique<CudaGraph>(device, body);
}

}  // namespace

Capture cuda_capture() { return &capture_on_cuda; }

}  // namespace colossal::tensor
