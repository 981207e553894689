#include "colossal/tensor/cuda_graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace colossal::tensor {
namespace {

/// The stream `later` goes on when `earlier` has done what it was asked for so far.
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
    // CUDA records no work of the stream that all others wait for. Backward passes run where their forward ran.
    const c10::cuda::CUDAStream aside = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
    order(here, aside);
    {
      const c10::cuda::CUDAStreamGuard on(aside);
      // Of this thread alone: others may pin memory for the next batch, or ask an event of NCCL's, meanwhile.
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
  /// Ends a recording that nobody will replay: its stream would refuse all that comes after.
  void abandon() noexcept {
    try {
      graph_.capture_end();
    } catch (...) {  // CUDA has ended it already, and what went wrong first is on its way
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
