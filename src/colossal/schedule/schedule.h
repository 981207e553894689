// A pipeline schedule as data: the list of steps of each rank, in order. Pure functions make these lists, one checker
// proves them, one simulator times them, one executor (parallel/pipeline) runs them.
//
// Words: the model is a chain of S stages; a rank holds `chunks` of them. A pipe is one copy of the chain. There is one
//        pipe, except for Chimera, which has two: its second copy runs through the ranks backwards. Every micro-batch
//        belongs to one pipe.
#pragma once
#include <string>
#include <vector>

namespace colossal::schedule {

enum class Action {
  Forward,
  Backward,         ///< computes the gradients of input and weights together
  BackwardInput,    ///< computes the gradient of the input alone, for which the previous stage waits
  BackwardWeight,   ///< computes the weight gradients that BackwardInput omitted, at any later time
  SendForward,      ///< sends the hidden state of (micro_batch, chunk) to `peer`, which holds the next stage
  ReceiveForward,   ///< receives the hidden state that is the input of (micro_batch, chunk)
  SendBackward,     ///< sends the gradient of the input of (micro_batch, chunk) to `peer`, which holds the previous
                    ///< stage
  ReceiveBackward,  ///< receives the gradient of the output of (micro_batch, chunk)
  /// Sums a chunk's gradients over its copies (data parallel ranks, the other pipe), after the chunk's last backward
  Reduce,
  Update,  ///< updates the rank's parameters; the last step
};

const char* to_string(Action action);
bool is_compute(Action action);   ///< true for the first four
bool is_backward(Action action);  ///< true for Backward and BackwardInput
bool is_send(Action action);
bool is_receive(Action action);
bool is_transfer(Action action);  ///< true for a send or a receive

/// One operation in the list of a rank. Messages and comments call it a step.
struct PipelineOp {
  Action action;
  int micro_batch = -1;  ///< index of the micro-batch; -1 = none (Reduce, Update)
  int chunk = -1;        ///< index of the chunk on this rank; -1 = none (Update)
  int peer = -1;         ///< other rank of a send or receive, within the pipeline; -1 = none
  bool operator==(const PipelineOp&) const = default;
};

/// Returns the step's name. Forward of micro-batch 3 is "F3" if a rank holds one chunk, else e.g. "F3b" for its second
/// chunk. B (Backward, BackwardInput) and W (BackwardWeight) follow the same pattern. Others are "SendForward 3b to
/// 1", "Reduce b" and "Update".
std::string to_string(const PipelineOp& step, int chunks);

/// The assignment of the model's stages to ranks and chunks.
class Placement {
 public:
  /// Puts stage k on rank k % ranks: plain (one chunk) and interleaved schedules
  static Placement looped(int ranks, int chunks);
  /// Runs down the ranks, up again, and so on: V-schedules (two chunks), Hanayo's waves
  static Placement zigzag(int ranks, int chunks);
  static Placement opposed(int ranks);  ///< Chimera: chunk 0 of pipe 0 runs down, chunk 1 of pipe 1 up

  int ranks() const { return ranks_; }
  int chunks() const { return chunks_; }  ///< number of stages that a rank holds
  int pipes() const { return pipes_; }
  int stages() const { return ranks_ * chunks_ / pipes_; }  ///< number of stages of one pipe
  int rank_of(int pipe, int stage) const;
  int chunk_of(int pipe, int stage) const;
  int stage_of(int rank, int chunk) const;
  int pipe_of(int chunk) const;
  bool operator==(const Placement&) const = default;

 private:
  enum class Kind { Looped, Zigzag, Opposed };
  Placement(Kind kind, int ranks, int chunks, int pipes) : kind_(kind), ranks_(ranks), chunks_(chunks), pipes_(pipes) {}
  Kind kind_;
  int ranks_, chunks_, pipes_;
};

/// The steps of each rank, in order.
using Lists = std::vector<std::vector<PipelineOp>>;

struct Schedule {
  std::string name;
  Placement placement;
  int micro_batches;  ///< Chimera: the first half belongs to pipe 0, the second to pipe 1
  Lists ranks;

  int pipe_of(int micro_batch) const { return placement.pipes() == 1 ? 0 : micro_batch * 2 / micro_batches; }
};

}  // namespace colossal::schedule
