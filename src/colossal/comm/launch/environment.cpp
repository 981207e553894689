#include "colossal/comm/launch/environment.h"

#include <unistd.h>

#include <charconv>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/comm/launch/host.h"

namespace colossal::comm {
namespace {

class Reader {
 public:
  explicit Reader(const Variables& variables) : variables_(variables) {}

  bool has(const std::string& name) const { return !text(name).empty(); }

  std::string text(const std::string& name) const {
    const auto it = variables_.find(name);
    return it == variables_.end() ? "" : it->second;
  }

  int number(const std::string& name, int low, int high) const {
    const std::string value = text(name);
    require(!value.empty(), "launch", name,
            " is not set, but other variables of its launcher are; set it, or unset them");
    int result = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    require(error == std::errc() && end == value.data() + value.size(), "launch", name,
            " must be a whole number: got \"", value, "\"");
    require(result >= low && result <= high, "launch", name, " must be in [", low, ", ", high, "]: got ", result);
    return result;
  }

  int number_or(const std::string& name, int low, int high, int otherwise) const {
    return has(name) ? number(name, low, high) : otherwise;
  }

 private:
  const Variables& variables_;
};

constexpr int kMaxRanks = 1 << 20;
constexpr int kDefaultPort = 29500;

/// Reads rank and size, but no ranks within a host: several agents on one host would give the same ones. The
/// rendezvous counts those.
void read_ranks(Environment& environment, const Reader& reader, const char* rank, const char* size) {
  environment.size = reader.number(size, 1, kMaxRanks);
  environment.rank = reader.number(rank, 0, environment.size - 1);
}

/// Returns a port that all ranks of one job agree on and that different jobs rarely share. It is below the range from
/// which the system assigns ports.
uint16_t port_of_job(const std::string& job) { return static_cast<uint16_t>(20000 + stable_hash(job) % 12000); }

void read_torchrun(Environment& environment, const Reader& reader) {
  environment.launcher = Launcher::Torchrun;
  read_ranks(environment, reader, "RANK", "WORLD_SIZE");
  environment.host = reader.has("MASTER_ADDR") ? reader.text("MASTER_ADDR") : "127.0.0.1";
  environment.port = static_cast<uint16_t>(reader.number_or("MASTER_PORT", 1, 65535, kDefaultPort));
  const std::string agent = reader.text("TORCHELASTIC_USE_AGENT_STORE");
  environment.hosted_store = agent == "True" || agent == "true" || agent == "1";
  const std::string run = reader.text("TORCHELASTIC_RUN_ID"), restart = reader.text("TORCHELASTIC_RESTART_COUNT");
  environment.prefix = concat("colossal/", run, "/", restart);
}

void read_open_mpi(Environment& environment, const Reader& reader) {
  environment.launcher = Launcher::OpenMpi;
  read_ranks(environment, reader, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  std::string job = reader.text("PMIX_NAMESPACE");
  if (job.empty()) job = reader.text("OMPI_MCA_ess_base_jobid");
  const bool one_host = reader.number_or("OMPI_COMM_WORLD_LOCAL_SIZE", 1, environment.size, -1) == environment.size;
  require(one_host || reader.has("MASTER_ADDR"), "launch",
          "mpirun over several hosts does not say where rank 0 runs; set "
          "MASTER_ADDR to that host: mpirun -x MASTER_ADDR=HOST ...");
  environment.host = reader.has("MASTER_ADDR") ? reader.text("MASTER_ADDR") : "127.0.0.1";
  environment.port = static_cast<uint16_t>(reader.number_or("MASTER_PORT", 1, 65535, port_of_job("mpi" + job)));
}

/// A batch script has SLURM_PROCID too, and the number of tasks of its allocation. Only a step of srun has started all
/// of its tasks. In a step of one task, e.g. a shell, Colossal starts the ranks.
bool is_slurm_rank(const Reader& reader) {
  return reader.has("SLURM_PROCID") && reader.number_or("SLURM_STEP_NUM_TASKS", 1, kMaxRanks, 1) > 1;
}

void read_slurm(Environment& environment, const Reader& reader) {
  environment.launcher = Launcher::Slurm;
  read_ranks(environment, reader, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
  const char* list = reader.has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_NODELIST";
  const std::string nodes = reader.has(list) ? reader.text(list) : reader.text("SLURM_JOB_NODELIST");
  const bool named = reader.has("MASTER_ADDR");
  require(named || !nodes.empty(), "launch",
          "SLURM_NODELIST is not set, but SLURM_PROCID is; set MASTER_ADDR to the host of rank 0");
  environment.host = named ? reader.text("MASTER_ADDR") : first_host(nodes);
  const std::string job = reader.text("SLURM_JOB_ID") + "." + reader.text("SLURM_STEP_ID");
  environment.port = static_cast<uint16_t>(reader.number_or("MASTER_PORT", 1, 65535, port_of_job("slurm" + job)));
  environment.prefix = "colossal/" + job;
}

void read_colossal(Environment& environment, const Reader& reader) {
  environment.launcher = Launcher::Colossal;
  read_ranks(environment, reader, "COLOSSAL_RANK", "COLOSSAL_SIZE");
  require(reader.has("COLOSSAL_STORE_HOST"), "launch", "COLOSSAL_STORE_HOST is not set, but COLOSSAL_RANK is");
  environment.host = reader.text("COLOSSAL_STORE_HOST");
  environment.port = static_cast<uint16_t>(reader.number("COLOSSAL_STORE_PORT", 1, 65535));
  environment.hosted_store = reader.number_or("COLOSSAL_STORE_HOSTED", 0, 1, 1) == 1;
}

}  // namespace

const char* to_string(Launcher launcher) {
  switch (launcher) {
    case Launcher::None:
      return "none";
    case Launcher::Colossal:
      return "colossal";
    case Launcher::Torchrun:
      return "torchrun";
    case Launcher::Slurm:
      return "slurm";
    case Launcher::OpenMpi:
      return "openmpi";
  }
  return "unknown";
}

Environment read_environment(const Variables& variables) {
  const Reader reader(variables);
  Environment environment;
  environment.host_name = reader.text("COLOSSAL_HOST");
  environment.secret = reader.text("COLOSSAL_SECRET");
  if (reader.has("COLOSSAL_RANK")) {
    read_colossal(environment, reader);
  } else if (reader.has("RANK") && reader.has("WORLD_SIZE")) {
    read_torchrun(environment, reader);
  } else if (reader.has("OMPI_COMM_WORLD_RANK")) {
    read_open_mpi(environment, reader);
  } else if (is_slurm_rank(reader)) {
    read_slurm(environment, reader);
  } else {
    require(!reader.has("RANK"), "launch",
            "WORLD_SIZE is not set, but RANK is; set both for a run of several ranks, or unset RANK");
  }
  return environment;
}

Variables process_variables() {
  Variables variables;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

std::string first_host(const std::string& list) {
  const size_t bracket = list.find('['), comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const size_t close = list.find(']', bracket);
  require(close != std::string::npos && close > bracket + 1, "launch", "cannot read the host list \"", list,
          "\": a bracket is not closed or empty; set MASTER_ADDR");
  const std::string inside = list.substr(bracket + 1, close - bracket - 1);
  const size_t end = std::min(list.find(',', close), list.size());
  const std::string tail = list.substr(close + 1, end - close - 1);  // may hold brackets of its own
  return list.substr(0, bracket) + inside.substr(0, inside.find_first_of(",-")) +
         (tail.empty() ? "" : first_host(tail));
}

}  // namespace colossal::comm
