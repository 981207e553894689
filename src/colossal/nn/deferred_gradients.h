// Weight gradients put off: a pipeline sends the gradient of the inputs on first and computes those of the weights when
// it would be idle (Zero Bubble, arXiv:2401.10241).
#pragma once
#include <functional>
#include <utility>
#include <vector>

namespace colossal::nn {

/// Where the linear layers of one model on one rank leave the product dW = dyt x during a backward pass whose weights
/// can wait.
///
/// Layers ask active(), and while it is true add a task in place of the product; all else (biases, norms, embeddings, a
/// language model's head, which makes its gradient in forward) they do at once. A task keeps x (or what x is computed
/// from) and dy alive, computes the product with its communication, and adds it to the parameter's gradient as autograd
/// would have, hooks included (which also run in the pass that brought nothing): the same numbers bit by bit, if tasks
/// run in the order of the passes.
/// Thread safety: none; a pass and its collection are of one thread.
class DeferredGradients {
 public:
  using Tasks = std::vector<std::function<void()>>;

  bool active() const { return collecting_ != nullptr; }
  void add(std::function<void()> task) { collecting_->push_back(std::move(task)); }
  /// Runs `backward` and returns what it put off, in its order: what ranks of one layout do in the same order.
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
