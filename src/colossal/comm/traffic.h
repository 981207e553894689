// A count of what one rank sent: payload and calls by group, collective and phase. Tests compare these counts with
// published formulas.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

namespace colossal::comm {

enum class Phase { Setup, Forward, Backward, Optimizer, Other };
const char* to_string(Phase phase);

/// Traffic counters of one rank, shared by all of its groups. Thread safe.
class Traffic {
 public:
  struct Count {
    int64_t calls = 0;
    double elements = 0;  ///< payload sent, by the ring convention of Group's contracts; exact in a double up to 2^53
    double bytes = 0;
  };
  using Key = std::tuple<std::string, std::string, Phase>;  // group, collective, phase

  void add(const std::string& group, const std::string& collective, double elements, double bytes);
  Phase phase() const;
  void set_phase(Phase phase);
  /// The pass of a pipeline that the rank works on; -1 = none. No counter depends on it; RecordingWorld notes it.
  struct Pass {
    int micro_batch = -1, chunk = -1;
  };
  Pass pass() const;
  void set_pass(Pass pass);
  /// Returns the sum over the entries that match. An empty string matches every group or collective. The name of an
  /// axis also matches its one-way groups and its channels (Mesh::one_way, Mesh::channel).
  Count total(const std::string& group = "", const std::string& collective = "") const;
  Count total(const std::string& group, const std::string& collective, Phase phase) const;
  std::map<Key, Count> entries() const;
  void reset();

 private:
  mutable std::mutex mutex_;
  Phase phase_ = Phase::Setup;
  Pass pass_;
  std::map<Key, Count> counts_;
};

/// Sets the phase until the scope ends, then restores the previous one. `traffic` must outlive the scope.
class PhaseScope {
 public:
  PhaseScope(Traffic& traffic, Phase phase) : traffic_(traffic), before_(traffic.phase()) { traffic.set_phase(phase); }
  ~PhaseScope() { traffic_.set_phase(before_); }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Traffic& traffic_;
  Phase before_;
};

/// Sets the pass until the scope ends, then restores the previous one. `traffic` must outlive the scope.
class PassScope {
 public:
  PassScope(Traffic& traffic, Traffic::Pass pass) : traffic_(traffic), before_(traffic.pass()) {
    traffic.set_pass(pass);
  }
  ~PassScope() { traffic_.set_pass(before_); }
  PassScope(const PassScope&) = delete;
  PassScope& operator=(const PassScope&) = delete;

 private:
  Traffic& traffic_;
  Traffic::Pass before_;
};

}  // namespace colossal::comm
