// Deferred weight gradients: in backward a pipeline first sends on the gradient of the inputs. It computes the weight
// gradients later, when it would otherwise be idle (Zero Bubble, arXiv:2401.10241).
#pragma once
#include <functional>
#include <utility>
#include <vector>

namespace colossal::nn {

/// A queue of deferred products dW = dyt x. The linear layers of one model on one rank add to it during a backward pass
/// whose weight gradients can wait.
///
/// Layers call active(). While it returns true they add a task instead of computing the product. The gradients of
/// biases, norms and embeddings are computed at once, and the head of a language model makes its gradient in forward.
///
/// A task keeps x (or what x is computed from) and dy alive. It computes the product with its communication, and adds
/// it to the parameter's gradient as autograd would have. It runs the gradient hooks, too; they also run in the pass
/// that deferred the product. The values are the same bit by bit if tasks run in the order of the passes.
/// Thread safety: none; a pass and its collection run on one thread.
class DeferredGradients {
 public:
  using Tasks = std::vector<std::function<void()>>;

  bool active() const { return collecting_ != nullptr; }
  void add(std::function<void()> task) { collecting_->push_back(std::move(task)); }
  /// Runs `backward` and returns the tasks that it deferred, in the order in which they were added. All ranks of one
  /// layout get them in the same order.
  Tasks collect(const std::function<void()>& backward) {
    Tasks tasks;
    const struct Scope {
      Tasks*& slot;
      ~Scope() { slot = nullptr; }
    } scope{collecting_};
    collecting_ = &tasks;
    backward();
    return tasks;
  }

 private:
  Tasks* collecting_ = nullptr;
};

}  // namespace colossal::nn
