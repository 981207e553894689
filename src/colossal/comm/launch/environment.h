// Which launcher started this process, and what it said about ranks and rendezvous. Pure functions of the environment
// variables.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace colossal::comm {

enum class Launcher { None, Colossal, Torchrun, Slurm, OpenMpi };
const char* to_string(Launcher launcher);

using Variables = std::map<std::string, std::string>;

struct Environment {
  Launcher launcher = Launcher::None;
  int rank = 0, size = 1;
  std::string host;  ///< of the store
  uint16_t port = 0;
  bool hosted_store = false;  ///< the launcher runs the store's server; rank 0 only connects
  std::string prefix;         ///< of all keys in the store: tells restarts of one run apart
  std::string host_name;      ///< overrides what this host is called (COLOSSAL_HOST); empty: ask the system
  std::string secret;         ///< of the run (COLOSSAL_SECRET): ranks sign what they tell each other; may be empty
};

/// Asks for, in this order: COLOSSAL_RANK (our own launcher); RANK and WORLD_SIZE (torchrun); OMPI_COMM_WORLD_RANK
/// (mpirun); SLURM_PROCID in a step of several tasks (srun). A batch script of Slurm, a shell in an allocation and a
/// step of one task are no ranks. MASTER_ADDR and MASTER_PORT are obeyed wherever they are set. Errors: throws
/// Error("launch", ...) naming the variable that is missing, is no number or is out of range; RANK without WORLD_SIZE
/// is refused when no other launcher is there.
Environment read_environment(const Variables& variables);

/// All variables of this process.
Variables process_variables();

/// The first host of a Slurm list: "n[01-03,7],m2" -> "n01".
std::string first_host(const std::string& list);

}  // namespace colossal::comm
